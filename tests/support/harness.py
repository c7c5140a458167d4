"""What the integration tests share: a site with its own channel, tables and topics, and its services as processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from psycopg.conninfo import make_conninfo
from psycopg.sql import Composed
from sqlalchemy import Engine, create_engine

from outbox import HalfOutbox, Message, Outbox, Receipt, TableNames
from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import ChannelDescription, create_channel, verify_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant, Tables
from outbox.errors import ConfigurationError
from outbox.operator.reading.discards import read_manifests
from outbox.protocol.discard import Manifest
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpSource, encode_op, parse_op
from outbox.testing import VisibleRecord, read_committed, settled
from tests.support.forked import CONSTANTS, Forked, may_fork

WAIT_SECONDS = 60.0
QUICK_CHECKS = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "200", "OUTBOX_CHECK_INTERVAL_MS": "200"}
QUICK_SESSION = {"OUTBOX_KAFKA": '{"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}'}
"""The partitions of a relay that dies are soon another one's."""
ROLE_PASSWORD = "secret-of-a-role"  # noqa: S105 - of roles of tests


@dataclass
class Service:
    """A relay or a checker in a process of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def stopped(self) -> bool:
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self, timeout: float = 30) -> int:
        self.process.terminate()
        return self.process.wait(timeout)

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        """Wait until it ends by itself; the exit code, negative for a signal."""
        return self.process.wait(timeout)

    def output(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Site:
    """A channel, callback tables and real topics of one test, apart from all others on the same servers."""

    bootstrap_servers: str
    postgres_url: str
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")
    services: list[Service] = field(default_factory=list)
    replication: int = 1
    forks: bool = True
    """Whether services start as forks: sooner, but under the command line of another process."""

    constants: dict[str, float] = field(default_factory=dict)
    """Other values of constants of services, by full names: intervals that a test would wait for."""

    def __post_init__(self) -> None:
        self.admin = admin_client(self.kafka())
        self.channel = Channel(self.name)
        self.tables = TableNames("public", self.name)
        self._logs = tempfile.TemporaryDirectory(prefix="outbox-logs-")
        self._engines: list[Engine] = []
        self._outboxes: list[HalfOutbox | Outbox] = []
        self._started = 0

    def create(self, *topics: str, partitions: int = 2) -> ChannelDescription:
        """Create the channel with so many partitions, the tables, and real topics of three partitions."""
        description = create_channel(self.kafka(), self.channel, partitions=partitions, replication=self.replication)
        self.create_tables(CallbackTable)
        self.create_topics(*topics)
        return description

    def create_topics(self, *topics: str, partitions: int = 3) -> None:
        self.create_named_topics(*(self.topic(name) for name in topics), partitions=partitions)

    def create_named_topics(self, *names: str, partitions: int = 3) -> None:
        """Create topics of exactly these names, those that another test has not made, and wait until all see them."""
        missing = set(names) - set(self.admin.list_topics(timeout=10).topics)
        new = [NewTopic(name, partitions, self.replication) for name in sorted(missing)]
        for future in self.admin.create_topics(new).values() if new else ():
            future.result(20)
        wait_until(lambda: set(names) <= set(self.admin.list_topics(timeout=10).topics))

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, str], nodes: Sequence[Sequence[int]] = ()
    ) -> None:
        """Create a real topic with settings of its own. `nodes`: the brokers that have each partition; else any."""
        where: Any = {"replica_assignment": nodes} if nodes else {"replication_factor": self.replication}
        topic = self.topic(name)
        self.admin.create_topics([NewTopic(topic, partitions, config=dict(settings), **where)])[topic].result(20)
        wait_until(lambda: topic in self.admin.list_topics(timeout=10).topics)

    def grow(self, *topics: str, partitions: int) -> None:
        """Add partitions to topics of exactly these names, and wait until all see them."""
        for future in self.admin.create_partitions([NewPartitions(topic, partitions) for topic in topics]).values():
            future.result(20)
        seen = self.admin.list_topics
        wait_until(lambda: all(len(seen(one, timeout=10).topics[one].partitions) == partitions for one in topics))

    def delete_topics(self, *names: str) -> None:
        for future in self.admin.delete_topics([*names]).values():
            future.result(20)
        wait_until(lambda: not set(names) & set(self.admin.list_topics(timeout=10).topics))

    def delete_records(self, topic: str, *partitions: int, before: int = -1) -> dict[int, int]:
        """Delete records below an offset, all by default; where each partition begins then."""
        cut = self.admin.delete_records([TopicPartition(topic, partition, before) for partition in partitions])
        return {place.partition: future.result(20).low_watermark for place, future in cut.items()}

    def set_topic(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(20)

    def produce(self, topic: str, *record: Any, **options: Any) -> None:
        """Write a record, as `Producer.produce()` takes it, and wait until it is stored."""
        producer = Producer(self.kafka())
        producer.produce(topic, *record, **options)
        assert producer.flush(WAIT_SECONDS) == 0

    @contextmanager
    def open_transaction(self, topic: str, *partitions: int) -> Iterator[None]:
        """A Kafka transaction of somebody else, with a record in each of these partitions, aborted in the end."""
        settings = {"transactional.id": f"{self.name}-stranger", "transaction.timeout.ms": 600_000}
        stranger = Producer({**self.kafka(), **settings})
        stranger.init_transactions(30)
        stranger.begin_transaction()
        for partition in partitions:
            stranger.produce(topic, b"of a stranger", b"x/0", partition)
        assert stranger.flush(20) == 0
        try:
            yield
        finally:
            stranger.abort_transaction(30)

    def kafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap_servers}

    def topic(self, name: str) -> str:
        return f"{self.name}.{name}"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.postgres_url, autocommit=True, **options)

    def sql(self, statement: str | Composed, *parameters: Any) -> list[Any]:
        query = statement.encode() if isinstance(statement, str) else statement
        with self.connect() as connection:
            ran = connection.execute(query, parameters or None)
            return ran.fetchall() if ran.description else []

    def create_tables(self, *kinds: Callable[[TableNames], Tables]) -> None:
        with self.connect() as connection:
            for kind in kinds:
                kind(self.tables).create(connection)

    def incarnation(self) -> str:
        with self.connect() as connection:
            return CallbackTable(self.tables).incarnation(connection) or ""

    def role(self, name: str, *rights: Callable[[str], Grant], attributes: str = "") -> str:
        """Create a role of this site, and give it rights; its connection string."""
        role = f"{self.name}_{name}"
        with self.connect() as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{ROLE_PASSWORD}' {attributes}".encode())
            for right in rights:
                for statement in right(role).statements():
                    connection.execute(statement)
        return make_conninfo(self.postgres_url, user=role, password=ROLE_PASSWORD)

    def engine(self, **options: Any) -> Engine:
        url = self.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
        engine = create_engine(url, **options)
        self._engines.append(engine)
        return engine

    def outbox(self, service: str = "orders", **options: Any) -> Outbox:
        made = Outbox(service, channel=self.name, tables=self.tables, **options)
        self._outboxes.append(made)
        return made

    def half_outbox(self, service: str = "orders", **options: Any) -> HalfOutbox:
        made = HalfOutbox(service, self.kafka(), channel=self.name, tables=self.tables, **options)
        self._outboxes.append(made)
        return made

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "OUTBOX_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "OUTBOX_POSTGRES_URL": self.postgres_url,
            "OUTBOX_CHANNEL": self.name,
            "OUTBOX_TABLE_PREFIX": self.name,
            "OUTBOX_SERVICE": "orders",
            "OUTBOX_PROFILE": "development",
            "OUTBOX_TRANSACTION_TIMEOUT_MS": "1000",
            "OUTBOX_CHECK_INTERVAL_MS": "500",
            "OUTBOX_CHECK_INTERVAL_MAX_MS": "1000",
            "OUTBOX_BREAKER_LIMIT": "100000",  # tests begin many transactions that nobody commits
        }

    def start(self, name: str, *, failpoint: str = "", extra: Mapping[str, str | None] | None = None) -> Service:
        """Start `outbox relay` or `outbox checker`; an extra variable that is None is not set."""
        return self.start_module("outbox", name, failpoint=failpoint, extra=extra)

    def start_module(
        self, module: str, *arguments: str, failpoint: str = "", extra: Mapping[str, str | None] | None = None
    ) -> Service:
        """Start `python -m` of a module, with the settings of this site; the log has the name of the last argument."""
        variables = {**self.environment(), FAILPOINT: failpoint, **(extra or {})}
        self._started += 1
        log = Path(self._logs.name) / f"{arguments[-1]}-{self._started}.log"
        environ = {name: value for name, value in variables.items() if value is not None}
        if module == "outbox" and self.forks and may_fork(environ):
            constants = {CONSTANTS: json.dumps(self.constants)}
            service = Service(Forked(arguments, environ | constants, log, log), log)
        else:
            with log.open("wb") as output:
                words = [sys.executable, "-m", module, *arguments]
                service = Service(subprocess.Popen(words, env=environ, stdout=output, stderr=subprocess.STDOUT), log)
        self.services.append(service)
        return service

    @property
    def log_folder(self) -> str:
        return self._logs.name

    def relay(self, **options: Any) -> Service:
        return self.start("relay", **options)

    def checker(self, **options: Any) -> Service:
        return self.start("checker", **options)

    def read(self, *topics: str) -> list[VisibleRecord]:
        """Everything that a read_committed reader sees now on real topics, by topic, partition and offset."""
        return read_committed(self.kafka(), [self.topic(name) for name in topics])

    def wait_visible(self, count: int, *topics: str, timeout: float = WAIT_SECONDS) -> list[VisibleRecord]:
        """Wait until so many records are visible; what is visible then."""
        seen: list[VisibleRecord] = []

        def enough() -> bool:
            seen[:] = self.read(*topics)
            return len(seen) >= count

        wait_until(enough, timeout, lambda: f"{len(seen)} of {count} visible\n{self.logs()}")
        return seen

    def halves(self) -> list[VisibleRecord]:
        return read_committed(self.kafka(), [self.channel.half_topic])

    def ops(self) -> list[tuple[OpSource, OpEntry]]:
        verdict = self.channel.verdict_topic
        records = read_committed(self.kafka(), [self.channel.op_topic, verdict])
        parsed = [parse_op(record.value, record.headers, verdict=record.topic == verdict) for record in records]
        return [(source, entry) for source, entries in parsed for entry in entries]

    def discards(self) -> dict[bytes, bytes]:
        """What the discard topic has, by key: manifests, and halves in their envelopes."""
        newest = {one.key or b"": one.value for one in read_committed(self.kafka(), [self.channel.discard_topic])}
        return {key: value for key, value in newest.items() if value is not None}

    def send_half(
        self,
        transaction: str,
        topic: str = "t",
        *,
        service: str = "orders",
        value: str = "v",
        partition: int = 0,
        options: str = "",
    ) -> None:
        """Write a half by hand. `transaction` and `options`: values of the headers that are named so."""
        names = {"outbox-target": f"{topic}:-1", "outbox-transaction": transaction, "outbox-service": f"{service};row"}
        headers = [*names.items(), *([("outbox-options", options)] if options else ())]
        self.produce(self.channel.half_topic, value, b"k", partition, headers=headers)

    def manifests(self) -> list[Manifest]:
        """What is discarded or parked now, without what was delivered or rolled back from there."""
        return list(read_manifests(self.kafka(), verify_channel(self.admin, self.channel)))

    def checkpoints(self) -> list[TopicPartition]:
        """Return the relays' checkpoints of partition 0 of the half and the op topic."""
        places = [TopicPartition(topic, 0) for topic in (self.channel.half_topic, self.channel.op_topic)]
        with closing(self._as_relay()) as consumer:
            return consumer.committed(places, 10)

    def commit(self, *places: TopicPartition) -> None:
        """Commit offsets in the relays' group, as Kafka's own tools do."""
        with closing(self._as_relay()) as consumer:
            consumer.commit(offsets=list(places), asynchronous=False)

    def _as_relay(self) -> Consumer:
        return Consumer({**self.kafka(), "group.id": self.channel.relay_group, "enable.auto.commit": False})

    def delete_group(self, group: str = "") -> None:
        """Let Kafka forget what a group without members has committed, that of the relays by default."""
        for future in self.admin.delete_consumer_groups([group or self.channel.relay_group]).values():
            future.result(20)

    def send_verdict(self, entry: OpEntry, source: OpSource = OpSource.CHECKER) -> None:
        value, headers = encode_op([entry], source)
        self.produce(self.channel.verdict_topic, value, None, entry.partition, headers=list(headers))

    def rows(self) -> dict[str, str]:
        return dict(self.sql(f"SELECT transaction_id::text, state FROM {self.tables.transaction}"))

    def wait_settled(self, timeout: float = WAIT_SECONDS) -> None:
        wait_until(self.settled, timeout, self.logs)

    def settled(self) -> bool:
        """Whether the checkpoints of all half partitions stand at the end of the half topic, as far as Kafka tells."""
        try:
            return settled(self.kafka(), self.channel)
        except ConfigurationError:
            return False

    def logs(self) -> str:
        return "\n".join(f"--- {service.log.name}\n{service.output()[-3000:]}" for service in self.services)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for service in self.services:
            if service.running:
                service.process.send_signal(signal.SIGKILL)
                service.process.wait()
        for outbox in self._outboxes:
            outbox.close(0) if isinstance(outbox, HalfOutbox) else outbox.close()
        for engine in self._engines:
            engine.dispose()
        self._logs.cleanup()


@contextmanager
def other_database(site: Site) -> Iterator[str]:
    """Create an empty database on the server of a site, drop it in the end; the block gets its URL."""
    name = f"{site.name}_other"
    with site.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield urlsplit(site.postgres_url)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def doubled(records: Sequence[VisibleRecord]) -> list[str]:
    return [id_ for id_, count in Counter(record.message_id for record in records).items() if count > 1]


def publish_on(connection: psycopg.Connection[Any], outbox: HalfOutbox | Outbox, message: Message) -> Receipt:
    """Publish a message in a transaction of its own, in either mode."""
    if isinstance(outbox, HalfOutbox):
        with outbox.transaction(connection) as transaction:
            return transaction.publish(message)
    with connection.transaction():
        return outbox.publish(connection, message)


def wait_until(
    condition: Callable[[], bool], timeout: float = WAIT_SECONDS, explain: Callable[[], str] = lambda: ""
) -> None:
    deadline, pause = time.monotonic() + timeout, 0.05
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {explain()}")
        time.sleep(pause)
        pause = min(1.3 * pause, 0.25)  # a look at Kafka costs 15 ms of processor time, and others wait for it
