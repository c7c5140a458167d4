"""A site for integration tests: a channel, callback tables and real topics of its own, with a relay and a checker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.admin import admin_client, answer
from outbox._kafka.channel import create_channel
from outbox._postgres.callback_table import CallbackTable
from outbox.outbox import Outbox
from outbox.protocol.names import Channel
from outbox.settings import TableNames
from outbox.testing.reader import VisibleRecord, read_committed, settled
from outbox.testing.stacks import Servers

WAIT_SECONDS = 60.0
_PAUSE_SECONDS = 0.05
_TERMINATE_SECONDS = 10.0
_TAIL = 3_000

_QUICK = {
    "OUTBOX_PROFILE": "development",
    "OUTBOX_TRANSACTION_TIMEOUT": "500",
    "OUTBOX_CHECK_INTERVAL": "500",
    "OUTBOX_CHECK_INTERVAL_MAX": "1000",
}
"""One replica will do; ms: what nobody decided is asked for after half a second, not after six."""


@dataclass(frozen=True, slots=True)
class Service:
    """A relay or a checker in a process of its own.

    Args:
        name: `relay` or `checker`.
        process: The process.
        log: Where it logs.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        """The end of its log."""
        return f"--- {self.name}\n{self.log.read_text(errors='replace')[-_TAIL:]}"


class Site:
    """A channel, callback tables and real topics of one test, apart from all others on the same servers.

    Inside the `with` block a relay and a checker run. Nothing is dropped at the end: the names are never used again.

    Args:
        servers: Kafka and Postgres; the fixture `outbox_stack`, say.
        group: Producer group of `outbox()` and of the environment.
        partitions: Of the half topic.

    Attributes:
        name: Name of the channel, and beginning of the names of tables and topics.
        channel: Names of the internal topics.
        tables: Names of the callback tables.
        kafka: librdkafka properties for a client.
        postgres_url: `postgresql://…`, for psycopg.
        sqlalchemy_url: `postgresql+psycopg://…`, for SQLAlchemy, sync or async.

    Example:
        with Site(outbox_stack) as site, site.outbox() as outbox:
            orders = site.topic("orders")
            ...
            assert_published(outbox, orders, key="42", count=1)
    """

    def __init__(self, servers: Servers, group: str = "test", *, partitions: int = 2) -> None:
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.group = group
        self.channel = Channel(self.name)
        self.tables = TableNames("public", self.name)
        self.kafka = {"bootstrap.servers": servers.bootstrap_servers}
        self.postgres_url = servers.postgres_url
        self.sqlalchemy_url = "postgresql+psycopg://" + servers.postgres_url.partition("://")[2]
        self._partitions = partitions
        self._topics: set[str] = set()
        self._services: list[Service] = []
        self._life = ExitStack()

    def __enter__(self) -> Self:
        """Create everything, and start relay and checker.

        Raises:
            ConfigurationError: Kafka or Postgres refuses.
        """
        with ExitStack() as life:
            create_channel(self.kafka, self.channel, partitions=self._partitions, replication=1)
            with self.connect() as connection:
                CallbackTable(self.tables).create(connection)
            logs = Path(life.enter_context(tempfile.TemporaryDirectory(prefix="outbox-site-")))
            for name in ("relay", "checker"):
                self._services.append(life.enter_context(_running(name, logs / name, self.environment())))
            self._life = life.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the outboxes, stop relay and checker."""
        self._life.close()

    # --- for the application ------------------------------------------------------------------------------------

    def outbox(self, group: str | None = None, **options: Any) -> Outbox:
        """An outbox of this site, closed with it; `AsyncOutbox.over()` gives its asyncio face.

        Args:
            group: Producer group; None: the site's.
            options: Further arguments of `Outbox`.
        """
        made = Outbox(group or self.group, self.kafka, channel=self.name, tables=self.tables, **options)
        self._life.callback(made.close)
        return made

    def topic(self, name: str, partitions: int = 3) -> str:
        """The full name of a real topic of this site; it is created at the first call.

        Raises:
            ConfigurationError: Kafka refuses.
        """
        full = f"{self.name}.{name}"
        if full not in self._topics:
            admin = admin_client(self.kafka)
            new = [NewTopic(full, num_partitions=partitions, replication_factor=1)]
            for future in admin.create_topics(new).values():
                answer(future, "creating topics")
            self._wait(lambda: full in admin.list_topics(timeout=10).topics, f"topic {full} to be there", services=())
            self._topics.add(full)
        return full

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit."""
        return psycopg.connect(self.postgres_url, autocommit=True)

    def environment(self) -> dict[str, str]:
        """What a process needs for `Outbox.from_env()`, over this process's own environment."""
        return {
            **os.environ,
            **_QUICK,
            "OUTBOX_BOOTSTRAP_SERVERS": self.kafka["bootstrap.servers"],
            "OUTBOX_POSTGRES_URL": self.postgres_url,
            "OUTBOX_CHANNEL": self.name,
            "OUTBOX_TABLE_PREFIX": self.name,
            "OUTBOX_GROUP": self.group,
        }

    # --- what became of it --------------------------------------------------------------------------------------

    def read(self, *topics: str) -> list[VisibleRecord]:
        """All that a read_committed reader sees now, by topic, partition and offset.

        Args:
            topics: Full names.
        """
        return read_committed(self.kafka, topics)

    def rows(self) -> dict[str, str]:
        """The states in the callback table by transaction id: C is committed, R is the checker's tombstone."""
        query = CallbackTable(self.tables).compose("SELECT transaction_id::text, state FROM {transaction}")
        with self.connect() as connection:
            return dict(connection.execute(query).fetchall())

    def wait_settled(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every half is settled: delivered, or known to be rolled back.

        Raises:
            AssertionError: They were not in time.
        """
        self.wait_for(self._is_settled, "all halves to be settled", timeout)

    def _is_settled(self) -> bool:
        try:
            return settled(self.kafka, self.channel)
        except KafkaException:  # the coordinator moves, say
            return False

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float = WAIT_SECONDS) -> None:
        """Look again and again until a condition holds.

        Args:
            condition: The condition.
            what: "waited for …", for the error.
            timeout: Seconds.

        Raises:
            AssertionError: It did not hold in time, or relay or checker ended; with the ends of their logs.
        """
        self._wait(condition, what, timeout, services=self._services)

    def _wait(
        self, condition: Callable[[], bool], what: str, timeout: float = WAIT_SECONDS, *, services: Sequence[Service]
    ) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            ended = [service.name for service in services if service.process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{' and '.join(ended)} ended" if ended else f"not within {timeout} s"
                raise AssertionError(f"waited for {what}: {why}\n{self.logs()}")
            time.sleep(_PAUSE_SECONDS)

    def logs(self) -> str:
        """The ends of the logs of relay and checker."""
        return "\n".join(service.tail() for service in self._services)


@contextmanager
def _running(name: str, log: Path, environment: dict[str, str]) -> Iterator[Service]:
    """`outbox relay` or `outbox checker`, stopped at the end."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-m", "outbox", name], env=environment, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield Service(name, process, log)
        finally:
            process.terminate()
            try:
                process.wait(_TERMINATE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
