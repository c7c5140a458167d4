"""`outbox watch` on a real Kafka: a known history is counted once, whatever is killed; what hangs and waits is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclOperation,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from pyarrow import dataset
from sqlalchemy.orm import Session

from outbox import Message
from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._jars.fetch import fetch
from outbox._jars.java import find_java, spark_java_home
from outbox._service.exit_codes import Exit
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason, Manifest, manifest_key
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.positions import Positions
from outbox.testing import read_committed
from spark_jobs import watch as watch_module
from spark_jobs.runtime.session import SPARK_LOCK
from spark_jobs.watching.frames.per_minute import COUNTS, merged, with_quantiles
from spark_jobs.watching.state_tables import read_minutes
from stack import Stack
from tests.support.harness import Service, Site, wait_until
from tests.support.raw import RawLog, RawMessage
from tests.support.rights import AUTHORIZER, allow_only
from tests.support.shop import Shop
from tests.support.spark import SETTINGS, session

RUN_SECONDS = 240
TRANSACTIONS = 5
ROLLED_BACK = 2
ROUNDS = 7
"""Alerts one after the other, each of a record that is written once the one before was told."""

QUICK = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "60000"}
"""The relay asks about nothing while a test runs."""

SPARK = {"OUTBOX_SPARK": json.dumps(SETTINGS), "OUTBOX_LOG_FORMAT": "json"}

EAGER = {
    "OUTBOX_DANGLING_MS": "1000",
    "OUTBOX_UNDELIVERED_MS": "1000",
    "OUTBOX_HUNG_MS": "500",
    "OUTBOX_RELAY_LAG_MS": "600000",
}
"""What waits for a second is worth an alert."""


class Watched:
    """A site, an application on it, and a job that watches it in a folder of the test."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.topic_id = site.create("orders").half.id
        stock = NewTopic(site.topic("stock"), 1, 1, config={"message.timestamp.type": "LogAppendTime"})
        for future in site.admin.create_topics([stock, NewTopic(f"{site.name}-alerts", 1, 1)]).values():
            future.result(20)
        wait_until(lambda: {site.topic("stock"), self.alerts_topic} <= set(site.admin.list_topics(timeout=10).topics))
        self.shop = Shop(site)
        self.output = folder / "figures"
        self.file = folder / "outbox.prom"

    @property
    def alerts_topic(self) -> str:
        """Where alerts go."""
        return f"{self.site.name}-alerts"

    def tell(self) -> None:
        """Transactions of two messages each, and some that are rolled back; all are settled afterwards."""
        relay = self.site.relay(extra=QUICK)
        for number in range(TRANSACTIONS):
            with self.shop.session() as session:
                for topic in ("orders", "stock"):
                    self.shop.publish(session, topic, str(number), "key")
        for _ in range(ROLLED_BACK):
            with self.open_transaction():
                pass
        self.site.wait_visible(2 * TRANSACTIONS, "orders", "stock")
        self.site.wait_settled()
        assert relay.terminate() == 0

    @contextmanager
    def open_transaction(self) -> Iterator[None]:
        """A transaction whose half is stored, and that is rolled back at the end."""
        before = len(self.site.halves())
        with Session(self.shop.engine) as session:
            self.shop.outbox.publish(session, Message(self.site.topic("orders"), b"open", "key"), eager=True)
            wait_until(lambda: len(self.site.halves()) > before)
            yield
            session.rollback()

    @contextmanager
    def hung_transaction(self) -> Iterator[None]:
        """A Kafka transaction that is open on a real topic, and aborted at the end."""
        patient = {"transactional.id": f"{self.site.name}-hangs", "transaction.timeout.ms": 900_000}
        hanging = Producer({**self.site.kafka(), **patient})
        hanging.init_transactions()
        hanging.begin_transaction()
        hanging.produce(self.site.topic("orders"), b"v", b"k", partition=0)
        assert hanging.flush(20) == 0
        yield
        hanging.abort_transaction()

    def ask(self, transaction: str, times: int) -> None:
        """Check requests, as the relay writes them."""
        producer = Producer(self.site.kafka())
        for check in range(1, times + 1):
            request = CheckRequest(transaction, "orders", Truth.ROW, self.topic_id, 1, Positions.first(1), 0, 0, check)
            producer.produce(self.site.channel.check_topic, request.encode(), b"orders")
        assert producer.flush(20) == 0

    def discard(self, transaction: str) -> Iterator[None]:
        """A transaction goes to the discard topic after an aborted attempt, as the relay does it; then it leaves it."""
        manifest = Manifest(
            *(transaction, "orders", Truth.ROW, self.topic_id, 1, DiscardReason.TOO_LARGE, "10 MB", None),
            *(Positions.first(1), ((0, 0),), 0),
        )
        producer = Producer({**self.site.kafka(), "transactional.id": f"{self.site.name}-discards"})
        producer.init_transactions()
        for value, commit in ((manifest.encode(), False), (manifest.encode(), True), (None, True)):
            producer.begin_transaction()
            producer.produce(self.site.channel.discard_topic, value, manifest_key(transaction), partition=1)
            if not commit:
                producer.flush()
                producer.abort_transaction()
                continue
            producer.commit_transaction()
            yield

    def arguments(self, *more: str) -> list[str]:
        """The options of the command."""
        topics = ",".join(self.site.topic(name) for name in ("orders", "stock"))
        places = [
            "--output",
            str(self.output),
            "--prometheus-file",
            str(self.file),
            "--alerts-topic",
            self.alerts_topic,
        ]
        return ["--topics", topics, "--starting-offsets", "earliest", *places, *more]

    def start(self, *more: str, extra: Mapping[str, str] | None = None) -> Service:
        """Start `outbox watch`."""
        return self.site.start_module("outbox", "watch", *self.arguments(*more), extra={**SPARK, **(extra or {})})

    def run(self, *more: str, code: int = Exit.OK, extra: Mapping[str, str] | None = None) -> str:
        """Run `outbox watch --available-now`; what it said."""
        service = self.start("--available-now", *more, extra=extra)
        assert service.wait(RUN_SECONDS) == code, service.output()
        return service.output()

    def figures(self) -> Counter[str]:
        """What all rows add up to."""
        found: Counter[str] = Counter()
        for row in (
            dataset.dataset(self.output / "minutes", format="parquet", ignore_prefixes=["."]).to_table().to_pylist()
        ):
            found.update({name: row[name] for name in COUNTS})
            found.update(dict(row["discarded"]))
        return +found

    def partitions(self) -> list[dict[str, Any]]:
        """The table `partitions`, from its first batch to its last."""
        table = dataset.dataset(
            self.output / "partitions", format="parquet", partitioning="hive", ignore_prefixes=["."]
        ).to_table()
        return sorted(table.to_pylist(), key=lambda row: (row["batch_id"], row["topic"], row["partition"]))

    def alerts(self) -> dict[str, dict[str, Any]]:
        """The last word on each alert, by kind and subject."""
        records = read_committed(self.site.kafka(), [self.alerts_topic])
        mine = f"{self.site.name}/"
        return {(record.key or b"").decode().removeprefix(mine): json.loads(record.value or b"") for record in records}

    def states(self) -> dict[str, str]:
        """Whether each alert that was told is firing or resolved."""
        return {key: alert["state"] for key, alert in self.alerts().items()}


TOLD = {
    "halves": 2 * TRANSACTIONS + ROLLED_BACK,
    "committed": 2 * TRANSACTIONS,
    "rolled_back": ROLLED_BACK,
    "delivered": 2 * TRANSACTIONS,
}


@pytest.fixture
def watched(site: Site, tmp_path: Path) -> Iterator[Watched]:
    made = Watched(site, tmp_path)
    with made.shop:
        yield made


@pytest.mark.long
def test_a_history_is_counted_and_what_hangs_and_waits_is_told_until_it_is_over(watched: Watched) -> None:
    watched.tell()
    with watched.shop.session() as database:
        watched.shop.publish(database, "orders", "no relay delivers it", "key")
    hung = f"HUNG_TRANSACTION/{watched.site.topic('orders')}/0"
    with watched.hung_transaction(), watched.open_transaction():
        job = watched.start("--trigger-seconds", "0.2", extra=EAGER)
        expected = dict.fromkeys(("DANGLING/orders", "UNDELIVERED/orders", hung), "firing")
        wait_until(lambda: watched.states() == expected, RUN_SECONDS, job.output)
        wait_until(watched.file.exists, RUN_SECONDS, job.output)  # the file follows the alerts
        assert 'state="UNDECIDED"' in watched.file.read_text()
    over = {**expected, "DANGLING/orders": "resolved", hung: "resolved"}
    wait_until(lambda: watched.states() == over, RUN_SECONDS, job.output)
    assert job.terminate(60) == Exit.OK
    more = {"halves": 2, "committed": 1, "rolled_back": 1}
    assert watched.figures() == Counter(TOLD) + Counter(more)
    assert watched.alerts()[hung]["alert"] == "HUNG_TRANSACTION"
    assert "outbox_watch_messages_total" in watched.file.read_text()


@pytest.mark.long
def test_a_job_killed_at_any_place_counts_everything_once(watched: Watched) -> None:
    watched.tell()
    small = {"OUTBOX_MAX_OFFSETS_PER_BATCH": "16"}
    for place in ("watch.written:1", "watch.written:2", "watch.published:1", "watch.written:1"):
        watched.run(code=-signal.SIGKILL, extra={**small, FAILPOINT: place})
    watched.run(extra=small)
    assert watched.figures() == TOLD
    watched.run(extra=small)
    assert watched.figures() == TOLD
    rows = with_quantiles(merged(read_minutes(session(), str(watched.output)), ["topic"])).collect()
    figures = {row.topic: row for row in rows}
    stock, orders = (figures[watched.site.topic(name)] for name in ("stock", "orders"))
    assert stock.delivered == orders.delivered == TRANSACTIONS
    assert 0 <= stock.half_to_op_ms[0] <= stock.half_to_visible_ms[2]
    assert orders.half_to_visible_ms is None  # its records have the producers' time


@pytest.mark.long
def test_an_old_history_that_is_read_in_more_than_one_batch_is_no_alert(watched: Watched) -> None:
    watched.tell()
    said = watched.run(extra={"OUTBOX_MAX_OFFSETS_PER_BATCH": "16", **EAGER})
    assert said.count('"Batch watched"') > 1
    assert watched.alerts() == {}  # though its first halves were old when their decisions were not read yet
    assert watched.figures() == TOLD


@pytest.mark.long
def test_a_relay_that_stands_is_told_where_no_topic_is_watched(watched: Watched) -> None:
    watched.tell()
    with watched.shop.session() as database:
        watched.shop.publish(database, "orders", "no relay delivers it", "key")
    wait_until(lambda: len(watched.site.ops()) > TRANSACTIONS + ROLLED_BACK)
    [partition] = {record.partition for record in watched.site.halves()}  # they have one key
    for _ in range(2):
        watched.run("--topics", "", extra={"OUTBOX_RELAY_LAG_MS": "1000"})
    half = watched.site.channel.half_topic
    assert watched.states() == {f"RELAY_BEHIND/{half}/{partition}": "firing"}
    lags = [
        (row["batch_id"], row["relay_lag"] > 0, row["relay_lag_ms"] > 1000)
        for row in watched.partitions()
        if (row["topic"], row["partition"]) == (half, partition)
    ]
    assert lags == [(0, True, True), (1, True, True)]


@pytest.mark.long
def test_checks_and_discards_are_counted_and_told(watched: Watched) -> None:
    site = watched.site
    site.relay(extra={"OUTBOX_TRANSACTION_TIMEOUT_MS": "300", "OUTBOX_CHECK_INTERVAL_MS": "300"})
    with watched.open_transaction():  # there is no checker that answers
        wait_until(lambda: len(read_committed(site.kafka(), [site.channel.check_topic])) > 1)
        discarded = watched.discard(_transaction())
        next(discarded)
        watched.run()
        assert watched.states() == {"CHECKED_OFTEN/orders": "firing", "DISCARDED/orders": "firing"}
        next(discarded)
        watched.run()
    found = watched.figures()
    assert (found["halves"], found["committed"], found["TOO_LARGE"]) == (1, 0, 1)
    assert found["checks"] > 1


@pytest.mark.long
def test_records_that_are_gone_and_other_topics_end_the_job(watched: Watched) -> None:
    watched.tell()
    watched.run()
    said = watched.run("--topics", watched.site.topic("orders"), code=Exit.CONFIGURATION)
    assert "Name those real topics and that channel, or another output" in said
    with watched.shop.session() as database:
        watched.shop.publish(database, "orders", "gone", "key")
    half = watched.site.channel.half_topic
    for future in watched.site.admin.delete_records([TopicPartition(half, number, -1) for number in (0, 1)]).values():
        future.result(20)
    said = watched.run(code=Exit.UNSAFE).splitlines()[-1]
    assert said.startswith(f"outbox: Records that were to be counted are gone from Kafka: {half}/")
    assert watched.figures() == TOLD


@pytest.mark.long
def test_new_partitions_are_watched_and_a_topic_that_was_made_again_ends_the_job(watched: Watched) -> None:
    site, keys = watched.site, [f"key {number}" for number in range(8)]
    watched.tell()
    watched.run()
    for grown in site.admin.create_partitions([NewPartitions(site.topic("orders"), 9)]).values():
        grown.result(20)
    wait_until(lambda: len(site.admin.list_topics(timeout=10).topics[site.topic("orders")].partitions) == 9)
    relay = site.relay(extra=QUICK)
    for key in keys:
        with watched.shop.session() as database:
            watched.shop.publish(database, "orders", "after it grew", key)
    records = site.wait_visible(TRANSACTIONS + len(keys), "orders")
    assert max(record.partition for record in records) > 2  # before it grew there was none
    site.wait_settled()
    assert relay.terminate() == 0
    watched.run()
    assert watched.figures() == Counter(TOLD) + Counter(dict.fromkeys(("halves", "committed", "delivered"), len(keys)))
    for gone in site.admin.delete_topics([site.topic("stock")]).values():
        gone.result(20)
    wait_until(lambda: site.topic("stock") not in site.admin.list_topics(timeout=10).topics)
    site.create_topics("stock")
    said = watched.run(code=Exit.UNSAFE).splitlines()[-1]
    assert f"topic {site.topic('stock')} was deleted since batch 1" in said


@pytest.mark.long
def test_it_begins_on_a_live_channel_with_no_more_rights_than_documented(tmp_path: Path) -> None:
    with Stack(kafka_settings=AUTHORIZER) as own, Site(own.bootstrap_servers, own.postgres_url) as site:
        watched = Watched(site, tmp_path)
        channel = site.channel
        for name in (channel.op_topic, channel.verdict_topic, channel.check_topic, channel.discard_topic):
            allow_only(site, ResourceType.TOPIC, name, AclOperation.READ)
        for name in (site.topic("orders"), site.topic("stock")):
            allow_only(site, ResourceType.TOPIC, name, AclOperation.READ)
        # This test writes halves under the same name.
        allow_only(site, ResourceType.TOPIC, site.channel.half_topic, AclOperation.READ, AclOperation.WRITE)
        allow_only(site, ResourceType.TOPIC, watched.alerts_topic, AclOperation.WRITE)
        allow_only(site, ResourceType.GROUP, site.channel.relay_group, AclOperation.DESCRIBE)
        with _publishing(watched):
            job = watched.start("--starting-offsets", "latest", "--trigger-seconds", "0.2", extra=EAGER)
            wait_until(lambda: '"alerts": 1' in job.output() or not job.running, RUN_SECONDS, job.output)
            assert job.terminate(60) == Exit.OK, job.output()
        assert watched.figures()["halves"] > 0
        assert f"{site.name}/DANGLING/orders" in job.output()


@contextmanager
def _publishing(watched: Watched) -> Iterator[None]:
    """Halves that nobody decides come all the time."""
    log, over = RawLog(watched.site, watched.topic_id), threading.Event()

    def publish() -> None:
        while not over.wait(0.01):
            log.commit(RawMessage(watched.site.topic("orders")))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.long
def test_spark_submit_counts_the_same(watched: Watched) -> None:
    watched.tell()
    jars = ",".join(map(str, fetch(SPARK_LOCK)))
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", "--jars", jars]
    java = {"JAVA_HOME": str(spark_java_home(find_java())), "PYSPARK_PYTHON": sys.executable}
    environment = {**watched.site.environment(), **java, "PATH": os.environ["PATH"]}
    result = subprocess.run(
        [*submit, str(watch_module.__file__), *watched.arguments("--available-now")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert watched.figures() == TOLD


@pytest.mark.long
def test_in_real_time_single_records_are_told(watched: Watched, tmp_path: Path) -> None:
    transaction = _transaction()
    service = watched.site.start_module(
        *("outbox", "watch", "--real-time", "--alerts-topic", watched.alerts_topic),
        *("--checkpoint", str(tmp_path / "checkpoints"), "--trigger-seconds", "15", "--starting-offsets", "earliest"),
        extra={**SPARK, "OUTBOX_SPARK": json.dumps({**SETTINGS, "spark.master": "local[8]"})},
    )
    watched.ask(transaction, times=4)
    discarded = watched.discard(transaction)
    next(discarded)
    asked, told = f"CHECKED_OFTEN/{transaction}", f"DISCARDED/{transaction}"
    wait_until(lambda: watched.states() == {asked: "firing", told: "firing"}, RUN_SECONDS, service.output)
    assert watched.alerts()[told]["detail"] == "TOO_LARGE: 10 MB"
    assert watched.alerts()[asked]["producer_group"] == "orders"
    next(discarded)
    wait_until(lambda: watched.states()[told] == "resolved", RUN_SECONDS, service.output)
    assert len(read_committed(watched.site.kafka(), [watched.alerts_topic])) == 3
    _see_that_many_alerts_come_of_one_batch(watched, tmp_path / "checkpoints" / "watch" / "commits", service)
    assert service.terminate(60) == Exit.OK, service.output()


def _see_that_many_alerts_come_of_one_batch(watched: Watched, commits: Path, service: Service) -> None:
    """What is written once the alert before it is there would be in a later micro-batch each time."""

    def batches() -> int:
        return len(list(commits.glob("[0-9]*")))

    before = batches()
    for _ in range(ROUNDS):
        told, transaction = len(watched.states()), _transaction()
        watched.ask(transaction, times=3)
        wait_until(lambda: len(watched.states()) > told, RUN_SECONDS, service.output)  # noqa: B023 - it is called at once
    assert batches() - before < (ROUNDS - 1) / 2
    wait_until(lambda: batches() > before, RUN_SECONDS, service.output)  # they are counted where they are


def _transaction() -> str:
    return make_transaction_id(1_800_000_000_000, os.urandom(10))
