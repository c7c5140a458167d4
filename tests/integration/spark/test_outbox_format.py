"""`format("outbox")` on a real Kafka: what the internal topics hold, and how little is read for a filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # public, but not in its __all__
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable

from outbox._kafka.range_reader import SpanReader
from outbox.protocol.discard import manifest_key
from outbox.testing import VisibleRecord
from spark_jobs.runtime.errors import SourceError
from spark_jobs.sql import register
from spark_jobs.sql.data_source import OutboxReader, OutboxStreamReader
from spark_jobs.sql.options import Options
from spark_jobs.sql.schema import OutboxTable
from tests.support.harness import Site, wait_until
from tests.support.raw import RawLog, RawMessage
from tests.support.servers import Servers
from tests.support.spark import session

TRANSACTIONS = 20
UNDECIDED = 2


class Filled:
    """A channel with halves, commits and records that nobody can read; a relay has delivered what is committed."""

    def __init__(self, site: Site) -> None:
        self.site = site
        half = site.create("orders", partitions=2).half
        log = RawLog(site, half.id)
        topic = site.topic("orders")
        self.ids = [log.commit(RawMessage(topic), RawMessage(topic)) for _ in range(TRANSACTIONS)]
        log.flush()
        self.discarded = log.commit(RawMessage(site.channel.op_topic))
        log.flush()
        self.pending = [log.commit(RawMessage(topic, key=b"other")) for _ in range(UNDECIDED)]
        log._producer.flush(20)  # their halves only
        producer = Producer(site.kafka())
        producer.produce(site.channel.half_topic, b"no half", partition=1)
        producer.produce(site.channel.op_topic, b"no op", partition=1)
        assert producer.flush(20) == 0
        site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "600000"})
        site.wait_visible(2 * TRANSACTIONS, "orders")
        site.wait_visible(4, "discard")  # message and manifest of what cannot be delivered, and of what is no half
        producer.produce(site.channel.discard_topic, b"no manifest", manifest_key(self.ids[0]), partition=1)
        producer.produce(site.channel.discard_topic, None, b"gone/0", partition=1)
        assert producer.flush(20) == 0
        register(session())

    def read(self, what: str) -> DataFrame:
        """A frame of this channel."""
        return read(self.site, what)

    def halves(self, partition: int) -> list[VisibleRecord]:
        """What a half partition holds."""
        return [record for record in self.site.halves() if record.partition == partition]

    def records_read(self, monkeypatch: pytest.MonkeyPatch, *filters: Filter, what: str = "halves") -> int:
        """How many records of Kafka a query with these filters reads."""
        count, read = [0], SpanReader.read

        def counting(reader: SpanReader, spans: Any, passed: Any = lambda _: None) -> Iterator[Any]:
            for message in read(reader, spans, passed):
                count[0] += 1
                yield message

        monkeypatch.setattr(SpanReader, "read", counting)
        options = Options.of(
            {
                "kafka.bootstrap.servers": self.site.bootstrap_servers,
                "channel": self.site.name,
                "what": what,
                "clockskewms": "0",
            }
        )
        reader = OutboxReader(options, session().createDataFrame([], options.what.columns).schema)
        reader.pushFilters(list(filters))
        for share in reader.partitions():
            for _ in reader.read(share):
                pass
        monkeypatch.setattr(SpanReader, "read", read)
        return count[0]


def read(site: Site, what: str) -> DataFrame:
    """A frame of the channel of a site."""
    reader = session().read.format("outbox").options(channel=site.name, what=what)
    return reader.option("kafka.bootstrap.servers", site.bootstrap_servers).load()


def stream_reader(site: Site, what: str) -> OutboxStreamReader:
    """Plans and reads batches of a stream of the channel of a site, as Spark has it do."""
    given = {"kafka.bootstrap.servers": site.bootstrap_servers, "channel": site.name, "what": what}
    options = Options.of(given)
    return OutboxStreamReader(options, session().createDataFrame([], options.what.columns).schema)


def append(site: Site, topic: str, records: int, partition: int = 0) -> None:
    """Write records that nobody can decode."""
    producer = Producer(site.kafka())
    for _ in range(records):
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(20) == 0


def remove(site: Site, before: TopicPartition) -> None:
    """Remove the records before an offset, as retention does."""
    for future in site.admin.delete_records([before]).values():
        future.result(20)


@pytest.fixture(scope="module")
def filled(servers: Servers) -> Iterator[Filled]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as site:
        yield Filled(site)


def test_halves_are_rows_and_what_is_malformed_says_why(filled: Filled) -> None:
    rows = filled.read("halves").orderBy("partition", "offset").collect()
    stored = sorted(filled.site.halves(), key=lambda record: (record.partition, record.offset))
    assert [(row.partition, row.offset, row.value) for row in rows] == [
        (record.partition, record.offset, record.value) for record in stored
    ]
    good = [row for row in rows if row.problem is None]
    assert {row.transaction_id for row in good} == {*filled.ids, filled.discarded, *filled.pending}
    assert {(row.producer_group, row.truth) for row in good} == {("orders", "row")}
    [bad] = [row for row in rows if row.problem is not None]
    assert (bad.partition, bytes(bad.value), bad.transaction_id) == (1, b"no half", None)
    assert "is missing" in bad.problem


def test_ops_are_rows_by_entry_and_join_with_halves(filled: Filled) -> None:
    ops = filled.read("ops")
    assert (
        ops.where("problem is null and kind = 'COMMIT'").select("transaction_id").distinct().count() == TRANSACTIONS + 1
    )
    assert [bytes(row.value) for row in ops.where("problem is not null").collect()] == [b"no op"]
    halves = filled.read("halves").where("problem is null")
    undecided = halves.join(ops, "transaction_id", "left_anti").select("transaction_id").collect()
    assert {row.transaction_id for row in undecided} == set(filled.pending)


def test_pending_is_what_the_relay_has_not_settled(filled: Filled) -> None:
    rows = filled.read("pending").where("partition = 0").collect()
    assert {row.transaction_id for row in rows} == set(filled.pending)


def test_discards_tell_what_lies_there_and_what_is_no_record_of_it(filled: Filled) -> None:
    rows = filled.read("discards").orderBy("partition", "offset").collect()
    known = {row.record: row for row in rows if row.transaction_id == filled.discarded}
    assert known.keys() == {"message", "manifest"}
    assert all(row.alive and not row.removed and row.problem is None for row in known.values())
    assert (known["manifest"].reason, known["manifest"].decision) == ("INTERNAL_TOPIC", "COMMIT")
    assert (known["message"].topic, bytes(known["message"].value)) == (filled.site.channel.op_topic, b"v")
    assert "MALFORMED" in {row.reason for row in rows}
    no_manifest, no_key = rows[-2:]
    assert (no_manifest.record, no_manifest.removed, no_manifest.alive) == ("manifest", False, True)
    assert (no_key.record, no_key.removed, no_key.alive) == (None, True, False)
    assert "not JSON" in no_manifest.problem
    assert "gone" in no_key.problem


def test_spark_pushes_filters_down_and_the_answer_is_the_same(filled: Filled) -> None:
    halves = filled.read("halves")
    one = halves.where(f.col("partition") == 1)
    assert (halves.rdd.getNumPartitions(), one.rdd.getNumPartitions()) == (2, 1)
    assert one.count() == len(filled.halves(1))
    some = halves.where("partition = 0 and offset >= 3 and offset < 6")
    assert sorted(row.offset for row in some.collect()) == [3, 4, 5]
    third = filled.ids[2]
    assert halves.where(f.col("transaction_id") == third).count() == 2
    middle = filled.read("halves").orderBy("timestamp").collect()[TRANSACTIONS].timestamp
    before, since = (
        halves.where(f.col("timestamp") < middle).count(),
        halves.where(f.col("timestamp") >= middle).count(),
    )
    assert before + since == halves.count()


def test_a_query_that_has_nothing_to_read_has_no_rows(filled: Filled, site: Site) -> None:
    site.create()
    site.relay()
    site.wait_settled()
    assert {what: read(site, what).count() for what in OutboxTable} == dict.fromkeys(OutboxTable, 0)
    assert filled.read("halves").where("partition = 7").count() == 0
    assert filled.read("halves").where("offset >= 1000000").collect() == []


def test_only_what_a_filter_can_want_is_read(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = len(filled.site.halves())
    first, second = len(filled.halves(0)), len(filled.halves(1))
    zero = EqualTo(("partition",), 0)
    assert filled.records_read(monkeypatch) == everything
    assert filled.records_read(monkeypatch, EqualTo(("partition",), 1)) == second
    assert filled.records_read(monkeypatch, zero, GreaterThanOrEqual(("offset",), first - 5)) == 5
    assert filled.records_read(monkeypatch, zero, LessThan(("offset",), 4)) == 4
    assert filled.records_read(monkeypatch, zero, EqualTo(("offset",), 7)) == 1
    stamps = {row.offset: row.timestamp for row in filled.read("halves").where("partition = 0").collect()}
    since = stamps[first - 1]
    wanted = sum(stamp >= since for stamp in stamps.values())
    assert filled.records_read(monkeypatch, zero, GreaterThanOrEqual(("timestamp",), since)) == wanted < first
    until = stamps[0]
    wanted = sum(stamp <= until for stamp in stamps.values())
    assert filled.records_read(monkeypatch, zero, LessThanOrEqual(("timestamp",), until)) == wanted < first


@pytest.mark.long
def test_a_stream_goes_on_where_it_stopped(filled: Filled, tmp_path: Path) -> None:
    first = _stream(filled.site, tmp_path, maxOffsetsPerTrigger="7")
    assert first == sorted((record.partition, record.offset) for record in filled.site.halves())
    producer = Producer(filled.site.kafka())
    producer.produce(filled.site.channel.half_topic, b"late", partition=1)
    assert producer.flush(20) == 0
    more = _stream(filled.site, tmp_path)
    assert len(more) == len(first) + 1
    assert len(set(more)) == len(more)


def _stream(site: Site, folder: Path, **options: str) -> list[tuple[int, int]]:
    stream = (
        session()
        .readStream.format("outbox")
        .options(channel=site.name, what="halves", **options)
        .option("kafka.bootstrap.servers", site.bootstrap_servers)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    stream.awaitTermination()
    return sorted((row.partition, row.offset) for row in session().read.parquet(str(folder / "table")).collect())


def _batch(site: Site) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in read(site, "halves").collect())


@pytest.mark.long
def test_an_open_kafka_transaction_ends_what_is_read_until_it_is_over(site: Site, tmp_path: Path) -> None:
    register(session())
    site.create(partitions=1)
    half = site.channel.half_topic
    append(site, half, 2)
    hanging = Producer({**site.kafka(), "transactional.id": f"{site.name}-hangs"})
    hanging.init_transactions()
    hanging.begin_transaction()
    hanging.produce(half, b"v", partition=0)
    assert hanging.flush(20) == 0
    append(site, half, 1)
    assert _batch(site) == _stream(site, tmp_path) == [(0, 0), (0, 1)]
    hanging.abort_transaction()
    wait_until(lambda: len(_batch(site)) == 3)
    assert _batch(site) == _stream(site, tmp_path) == [(0, 0), (0, 1), (0, 3)]


@pytest.mark.long
def test_partitions_that_are_new_are_read_from_their_beginning(site: Site, tmp_path: Path) -> None:
    register(session())
    site.create(partitions=1)
    half = site.channel.half_topic
    append(site, half, 1)
    assert _stream(site, tmp_path) == [(0, 0)]
    for grown in site.admin.create_partitions([NewPartitions(half, 3)]).values():
        grown.result(20)
    wait_until(lambda: len(site.admin.list_topics(timeout=10).topics[half].partitions) == 3)
    append(site, half, 2, partition=2)
    append(site, half, 1)
    assert _batch(site) == _stream(site, tmp_path) == [(0, 0), (0, 1), (2, 0), (2, 1)]


@pytest.mark.long
def test_a_stream_ends_where_records_are_gone_or_the_topic_is_another_one(site: Site, tmp_path: Path) -> None:
    register(session())
    site.create(partitions=1)
    half = site.channel.half_topic
    append(site, half, 2)
    assert _stream(site, tmp_path) == [(0, 0), (0, 1)]
    append(site, half, 3)
    remove(site, TopicPartition(half, 0, 4))
    with pytest.raises(StreamingQueryException, match=r"from 2 to 4, and Kafka has 4\.\.4: records are gone"):
        _stream(site, tmp_path)
    assert _batch(site) == _stream(site, tmp_path / "anew") == [(0, 4)]
    for gone in site.admin.delete_topics([half]).values():
        gone.result(20)
    wait_until(lambda: half not in site.admin.list_topics(timeout=10).topics)
    site.create_named_topics(half, partitions=1)
    append(site, half, 6)
    with pytest.raises(StreamingQueryException, match=f"Topic {half} was deleted and recreated"):
        _stream(site, tmp_path / "anew")
    assert len(_batch(site)) == 6


def test_a_stream_ends_where_records_go_between_its_plan_and_its_tasks(site: Site) -> None:
    site.create(partitions=1)
    half = site.channel.half_topic
    append(site, half, 6)
    reader = stream_reader(site, "halves")
    begin = reader.initialOffset()
    [share] = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
    assert sum(batch.num_rows for batch in reader.read(share)) == 6
    remove(site, TopicPartition(half, 0, 4))
    with pytest.raises(SourceError, match=f"{half}/0 was to be read from 0 to 5: records are gone"):
        list(reader.read(share))
    reader = stream_reader(site, "halves")
    with pytest.raises(SourceError, match=r"from 0 to 5, and Kafka has 4\.\.5: records are gone"):
        reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
    assert read(site, "halves").count() == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"what": "reals"}, "Option what is 'reals'. Use one of halves, ops, verdicts, discards, pending"),
        ({"channel": "no-such-channel"}, "Topic no-such-channel.half does not exist"),
    ],
)
def test_what_cannot_be_read_is_named(filled: Filled, options: dict[str, str], complaint: str) -> None:
    reader = session().read.format("outbox").options(**{"channel": filled.site.name, "what": "halves", **options})
    with pytest.raises(PySparkException, match=complaint):
        reader.option("kafka.bootstrap.servers", filled.site.bootstrap_servers).load().collect()


def test_what_is_pending_is_no_stream(filled: Filled) -> None:
    reader = session().readStream.format("outbox").options(channel=filled.site.name, what="pending")
    frame = reader.option("kafka.bootstrap.servers", filled.site.bootstrap_servers).load()
    with pytest.raises(PySparkException, match="The table pending cannot be read as a stream"):
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
