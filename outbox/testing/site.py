"""A site for integration tests: its own channel, tables and real topics, with a relay and a checker."""

import json
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
from typing import Any, Self, Unpack

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.admin import admin_client, answer
from outbox._kafka.channel import create_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.message_table import MessageTable
from outbox.half_outbox import HalfOutbox, HalfOutboxOptions
from outbox.outbox import Outbox, OutboxOptions
from outbox.protocol.names import Channel
from outbox.settings import TableNames
from outbox.testing.reader import VisibleRecord, read_committed, settled
from outbox.testing.stacks import Servers

WAIT_SECONDS = 60.0
_PAUSE_SECONDS = 0.05
_TERMINATE_SECONDS = 10.0
_TAIL = 3_000

_SOURCE = "site"
"""Name of the message table in the relay's settings."""

_QUICK = {
    "OUTBOX_PROFILE": "development",
    "OUTBOX_TRANSACTION_TIMEOUT_MS": "500",
    "OUTBOX_CHECK_INTERVAL_MS": "500",
    "OUTBOX_CHECK_INTERVAL_MAX_MS": "1000",
}
"""Topics need one replica only; undecided transactions are checked after 500 ms, not after 6,000 ms."""


@dataclass(frozen=True, slots=True)
class Service:
    """A relay or a checker in a process of its own.

    Args:
        name: `relay` or `checker`.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        """Return the end of the log."""
        return f"--- {self.name}\n{self.log.read_text(errors='replace')[-_TAIL:]}"


class Site:
    """The channel, tables and real topics of one test, isolated from others on the same servers.

    A relay and a checker run inside the `with` block. The relay delivers half messages and the rows of the message
    table, so outboxes of each mode work. Topics and tables are not dropped at the end; their names are never reused.

    Args:
        servers: Kafka and Postgres, such as the fixture `outbox_stack`.
        service: Name of the service of `outbox()` and of `environment()`.
        partitions: Number of partitions of the half topic.

    Attributes:
        name: Name of the channel, and prefix of the names of tables and topics.
        channel: Names of the internal topics.
        tables: Names of the callback tables and of the message table.
        kafka: librdkafka properties for a client.
        postgres_url: `postgresql://…`, for psycopg.
        sqlalchemy_url: `postgresql+psycopg://…`, for SQLAlchemy, sync or async.

    Example:
        with Site(outbox_stack) as site, site.outbox() as outbox:
            orders = site.topic("orders")
            ...
            assert_published(site, orders, key="42", count=1)
    """

    def __init__(self, servers: Servers, service: str = "test", *, partitions: int = 2) -> None:
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.service = service
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
        """Create the channel and the tables, and start relay and checker.

        Raises:
            ConfigurationError: Kafka or Postgres refuses a request.
        """
        with ExitStack() as life:
            create_channel(self.kafka, self.channel, partitions=self._partitions, replication=1)
            with self.connect() as connection:
                CallbackTable(self.tables).create(connection)
                MessageTable(self.tables).create(connection)
            logs = Path(life.enter_context(tempfile.TemporaryDirectory(prefix="outbox-site-")))
            for name in ("relay", "checker"):
                self._services.append(life.enter_context(_running(name, logs / name, self.environment())))
            self._life = life.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the outboxes, and stop relay and checker."""
        self._life.close()

    # --- for the application ------------------------------------------------------------------------------------

    def outbox(self, name: str | None = None, **options: Unpack[OutboxOptions]) -> Outbox:
        """Create an outbox that is closed with the site; `AsyncOutbox.over()` returns its asyncio interface.

        Args:
            name: Name of the service; None: the service of the site.
            options: Further arguments of `Outbox`.
        """
        settings: OutboxOptions = {"channel": self.name, "tables": self.tables, **options}
        return self._life.enter_context(Outbox(name or self.service, **settings))

    def half_outbox(self, name: str | None = None, **options: Unpack[HalfOutboxOptions]) -> HalfOutbox:
        """Create an outbox of half mode, as `outbox()`."""
        settings: HalfOutboxOptions = {"channel": self.name, "tables": self.tables, **options}
        return self._life.enter_context(HalfOutbox(name or self.service, self.kafka, **settings))

    def topic(self, name: str, partitions: int = 3) -> str:
        """Return the full name of a real topic of this site; create the topic at the first call.

        Raises:
            ConfigurationError: Kafka refuses the request.
        """
        full = f"{self.name}.{name}"
        if full not in self._topics:
            admin = admin_client(self.kafka)
            new = [NewTopic(full, num_partitions=partitions, replication_factor=1)]
            for future in admin.create_topics(new).values():
                answer(future, "creating topics")
            self._wait(lambda: full in admin.list_topics(timeout=10).topics, f"topic {full} to exist", services=())
            self._topics.add(full)
        return full

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection to the database, in autocommit mode."""
        return psycopg.connect(self.postgres_url, autocommit=True)

    def environment(self) -> dict[str, str]:
        """Return the environment for `from_env()` in a child process: this process's own and the settings."""
        return {
            **os.environ,
            **_QUICK,
            "OUTBOX_BOOTSTRAP_SERVERS": self.kafka["bootstrap.servers"],
            "OUTBOX_POSTGRES_URL": self.postgres_url,
            "OUTBOX_CHANNEL": self.name,
            "OUTBOX_TABLE_PREFIX": self.name,
            "OUTBOX_SERVICE": self.service,
            "OUTBOX_TABLES": json.dumps({_SOURCE: {"dsn": self.postgres_url, "table_prefix": self.name}}),
        }

    # --- results ------------------------------------------------------------------------------------------------

    def read(self, *topics: str) -> list[VisibleRecord]:
        """Return all records that are visible to read_committed consumers, by topic, partition and offset.

        Args:
            topics: Full names of the topics.
        """
        return read_committed(self.kafka, topics)

    def wait_settled(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every half is settled, delivered or rolled back, and no row is in the message table.

        Raises:
            AssertionError: They were not settled in time.
        """
        self.wait_for(self.is_settled, "all halves and rows to be settled", timeout)

    def is_settled(self) -> bool:
        """Return whether every half is settled, and no row is in the message table."""
        try:
            return not self._rows_wait() and settled(self.kafka, self.channel)
        except KafkaException:  # for example, the coordinator moves
            return False

    def _rows_wait(self) -> bool:
        with self.connect() as connection:
            query = MessageTable(self.tables).compose("SELECT EXISTS (SELECT FROM {message})")
            return connection.execute(query).fetchone() == (True,)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float = WAIT_SECONDS) -> None:
        """Poll a condition until it is true.

        Args:
            what: Description of the condition, which follows "waited for" in the error.
            timeout: Maximum seconds to wait.

        Raises:
            AssertionError: It was not true in time, or relay or checker ended; the text has the ends of their logs.
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
        """Return the ends of the logs of relay and checker."""
        return "\n".join(service.tail() for service in self._services)


@contextmanager
def _running(name: str, log: Path, environment: dict[str, str]) -> Iterator[Service]:
    """Run `outbox relay` or `outbox checker`, and stop it at the end."""
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
