"""`outbox replay` on a real Kafka: what is selected is written once for each replay, unchanged and in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError
from outbox.protocol.partitioner import partition_for_key
from outbox.testing import VisibleRecord
from tests.support.harness import Site, wait_until
from tests.support.replaying import Replaying, landed, transaction
from tests.support.servers import Servers
from tests.support.spark import session


@pytest.fixture
def replaying(site: Site, tmp_path: Path) -> Replaying:
    site.create_topics("orders", "again")
    return Replaying(site, tmp_path)


@pytest.fixture(scope="module")
def refusing(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replaying]:
    """A table with much that cannot be replayed; nothing is ever written from it."""
    with Site(servers.bootstrap_servers, servers.postgres_url) as site:
        site.create_topics("orders")
        site.create_named_topics("another.half", "another.check", "similar.check")
        made, orders = Replaying(site, tmp_path_factory.mktemp("refusing")), site.topic("orders")
        old = replace(landed(orders, 1), timestamp=datetime(1970, 1, 1, tzinfo=UTC))
        made.land(landed(orders, 0), old, landed(orders, 0, partition=5), landed(f"{site.name}.half", 50))
        yield made


@pytest.mark.long
def test_what_was_landed_is_written_once_more_unchanged(replaying: Replaying) -> None:
    site, orders = replaying.site, replaying.site.topic("orders")
    headers = [("h", b"\xff"), ("h", None), ("h", b""), ("ä", b"1")]
    contents = [(b"k", b"\x00\xff"), (None, b"v"), (b"k", None), (None, None), (b"", b"")]
    rows = [
        landed(orders, number, key=key, value=value, headers=headers) for number, (key, value) in enumerate(contents)
    ]
    replaying.land(*rows)
    replaying.run(where="true", target=site.topic("again"))
    found = {record.message_id: record for record in site.read("again")}
    assert len(found) == len(rows)
    for row in rows:
        record = found[f"{transaction(0, row.offset)}/0"]
        assert (record.key, record.value) == (row.key, row.value)
        source = f"{orders}/0/{row.offset}".encode()
        assert list(record.headers) == [
            *(row.headers or ()),
            ("outbox-replay", b"again"),
            ("outbox-replay-source", source),
        ]
    assert _timestamps(site, "again") == {row.timestamp.timestamp() * 1000 for row in rows}
    assert site.read("orders") == []


def _timestamps(site: Site, topic: str) -> set[float]:
    consumer = Consumer({**site.kafka(), "group.id": "timestamps", "enable.partition.eof": False})
    consumer.assign([TopicPartition(site.topic(topic), number, 0) for number in range(3)])
    found = [message.timestamp()[1] for message in consumer.consume(len(site.read(topic)), 20)]
    consumer.close()
    return {float(time) for time in found}


@pytest.mark.long
def test_a_replay_that_is_run_again_writes_nothing_and_another_one_does(replaying: Replaying) -> None:
    orders = replaying.site.topic("orders")
    replaying.land(*(landed(orders, offset, key=b"%d" % offset) for offset in range(20)))
    first = replaying.run(where="offset < 10", transaction_rows=3)
    assert (first.plan.rows, first.entries.rows) == (10, 0)
    before = replaying.site.read("orders")
    assert len(before) == 10
    replaying.land(*(landed(orders, offset) for offset in range(20, 30)))  # what comes later belongs to it no more
    again = replaying.run(where="offset < 10")
    assert again.entries.rows == 10
    assert replaying.site.read("orders") == before
    replaying.run(where="offset < 10", replay_id="another")
    assert len(replaying.site.read("orders")) == 20


@pytest.mark.long
def test_what_was_landed_since_belongs_to_no_replay_that_has_begun(replaying: Replaying) -> None:
    orders = replaying.site.topic("orders")
    replaying.land(*(landed(orders, offset) for offset in range(5)))
    replaying.run(where="true")
    replaying.land(*(landed(orders, offset) for offset in range(5, 8)), landed(orders, 0, partition=2))
    assert replaying.run(where="true").plan.rows == 5
    assert len(replaying.site.read("orders")) == 5


@pytest.mark.long
def test_another_selection_under_the_same_id_is_refused(replaying: Replaying) -> None:
    replaying.land(*(landed(replaying.site.topic("orders"), offset) for offset in range(5)))
    replaying.run(where="offset < 3")
    with pytest.raises(UnsafeError, match="was begun with 3 records, and this selection has 2"):
        replaying.run(where="offset < 2")
    with pytest.raises(UnsafeError, match="or others"):
        replaying.run(where="offset in (0, 2)")
    assert len(replaying.site.read("orders")) == 3


@pytest.mark.long
def test_a_key_keeps_the_order_of_the_table_whatever_partition_it_came_from(replaying: Replaying) -> None:
    orders, stock = replaying.site.topic("orders"), replaying.site.topic("stock")
    keys = [b"a", b"b", b"c", b"d"]
    rows = [
        landed(topic, offset, partition=partition, key=keys[(offset + partition) % 4], value=b"%d" % offset)
        for topic in (stock, orders)
        for partition in (2, 0, 1)
        for offset in range(40)
    ]
    replaying.land(*rows)
    replaying.run(where="true", target=replaying.site.topic("again"), transaction_rows=7)
    found = replaying.site.read("again")
    assert len(found) == len(rows)
    for key in keys:
        ours = [record for record in found if record.key == key]
        assert {record.partition for record in ours} == {partition_for_key(key, 3)}
        wanted = sorted((row.topic, row.partition, row.offset) for row in rows if row.key == key)
        assert [_source(record) for record in ours] == wanted


def _source(record: VisibleRecord) -> tuple[str, int, int]:
    topic, partition, offset = (dict(record.headers)["outbox-replay-source"] or b"").decode().split("/")
    return topic, int(partition), int(offset)


@pytest.mark.long
def test_records_can_go_to_their_original_partitions(replaying: Replaying) -> None:
    orders = replaying.site.topic("orders")
    replaying.land(*(landed(orders, offset, partition=offset % 3, key=None) for offset in range(9)))
    replaying.run(where="true", partition_by="original")
    found = replaying.site.read("orders")
    assert [(record.partition, _source(record)[2]) for record in found] == [
        (partition, offset) for partition in range(3) for offset in range(partition, 9, 3)
    ]


@pytest.mark.long
def test_ids_and_verdicts_select_messages(replaying: Replaying, tmp_path: Path) -> None:
    orders = replaying.site.topic("orders")
    rows = [landed(orders, 0), landed(orders, 1, place=1), landed(orders, 2), landed(orders, 3), landed(orders, 4)]
    replaying.land(*rows)
    findings = [(transaction(0, 3), 0, "DUPLICATE"), (transaction(0, 4), 0, "LATE"), (transaction(0, 9), None, "LOST")]
    session().createDataFrame(findings, "transaction_id string, position int, verdict string").write.parquet(
        str(tmp_path / "report/findings")
    )
    replaying.run(replay_id="by-ids", ids=f"{transaction(0, 0)},{transaction(0, 2)}/0")
    replaying.run(replay_id="by-verdicts", verdicts="DUPLICATE,LOST", findings=str(tmp_path / "report"))
    found = sorted(
        (dict(record.headers)["outbox-replay"], _source(record)[2]) for record in replaying.site.read("orders")
    )
    assert found == [(b"by-ids", 0), (b"by-ids", 1), (b"by-ids", 2), (b"by-verdicts", 3)]


def test_a_dry_run_writes_nothing(replaying: Replaying) -> None:
    replaying.land(*(landed(replaying.site.topic("orders"), offset) for offset in range(5)))
    prepared = replaying.run(where="true", dry_run=True)
    assert prepared.plan.rows == 5
    assert sum(part.rows for part in prepared.parts) == 5
    assert replaying.site.read("orders") == []
    assert replaying.site.channel.replay_ledger_topic not in replaying.site.admin.list_topics(timeout=10).topics


@pytest.mark.long
def test_what_a_replay_has_sent_and_was_landed_is_not_sent_again_by_the_way(replaying: Replaying) -> None:
    orders = replaying.site.topic("orders")
    sent = landed(orders, 1, headers=[("outbox-replay", b"earlier")])
    replaying.land(landed(orders, 0), sent)
    assert replaying.run(where="true", dry_run=True).plan.rows == 1
    assert replaying.run(where="true", dry_run=True, include_replays=True).plan.rows == 2


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"where": "false"}, "there is nothing to replay"),
        ({"where": "no_such_column = 1"}, "where is no condition .*no_such_column"),
        ({"where": "offset +"}, "where is no condition"),
        ({"where": "offset + 1"}, "where is no condition .*FILTER_NOT_BOOLEAN"),
        ({"where": "topic like '%.half'"}, r"are no messages\. Leave them out"),
        (
            {"where": "partition = 0 and offset = 0 and topic not like '%.half'", "target": "no-such-topic"},
            "Topic no-such-topic does not exist",
        ),
        (
            {"where": "partition = 0 and offset = 0", "target": "another.check"},
            "Target another.check is an internal topic",
        ),
        (
            {"where": "partition = 5", "partition_by": "original", "target": "similar.check"},
            "it has 3 partitions, and no partition 5",
        ),
        ({"ids": f"{transaction(0, 0)},{transaction(7, 7)}"}, f"1 of the ids select no record .*{transaction(7, 7)}"),
        ({"where": "partition = 5", "partition_by": "original"}, "it has 3 partitions, and no partition 5"),
        ({"where": "true", "table": "/no/such/table"}, "has no Delta table records"),
        ({"verdicts": "LOST", "findings": "/no/such"}, "The findings of an audit in /no/such cannot be read"),
        ({"where": "timestamp < '1990-01-01' and topic like '%.orders'"}, "which librdkafka cannot write"),
    ],
)
@pytest.mark.long
def test_unclear_input_is_refused_in_one_sentence(refusing: Replaying, given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        refusing.run(**given)
    assert "\n" not in str(caught.value)
    assert refusing.site.channel.replay_ledger_topic not in refusing.site.admin.list_topics(timeout=10).topics


@pytest.mark.long
def test_a_target_that_was_made_again_is_refused(replaying: Replaying) -> None:
    replaying.land(landed(replaying.site.topic("orders"), 0))
    replaying.run(where="true")
    replaying.site.delete_topics(replaying.site.topic("orders"))
    wait_until(lambda: replaying.site.topic("orders") not in replaying.site.admin.list_topics(timeout=10).topics)
    replaying.site.create_topics("orders")
    with pytest.raises(UnsafeError, match="is another one than when replay again began"):
        replaying.run(where="true")
    assert replaying.site.read("orders") == []
