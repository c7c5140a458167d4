"""Applications for the contract suite: the same on an outbox in memory and on the real one."""

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from outbox import HalfOutbox, Message, Outbox, Receipt
from outbox.testing import InMemoryHalfOutbox, InMemoryOutbox, PublishedMessage, VisibleRecord, read_committed
from outbox.testing.own_rows import rows_of
from tests.support import message_rows
from tests.support.doors import sqlalchemy_url
from tests.support.harness import Site
from tests.support.shop import Shop

PARTITIONS = 3


class Place(ABC):
    def __init__(self, engine: Engine, outbox: Outbox | HalfOutbox, table: str, url: str | None) -> None:
        self.engine, self.outbox, self.table = engine, outbox, table
        self._url = url  # of Postgres
        self._numbers = itertools.count(1)

    @abstractmethod
    def topic(self) -> str:
        """A new topic."""

    @abstractmethod
    def other_outbox(self, service: str) -> Outbox | HalfOutbox:
        """Another outbox of the same kind."""

    def number(self) -> int:
        """A number that no row has."""
        return next(self._numbers)

    def async_engine(self) -> AsyncEngine:
        return create_async_engine(sqlalchemy_url(self._url or "", "psycopg"), poolclass=NullPool)

    def connect(self) -> psycopg.Connection[Any] | None:
        return None if self._url is None else psycopg.connect(self._url)

    checks_topics = True
    """Whether `publish()` refuses what the topic would; a real row waits for its topic, or is discarded."""

    @property
    def has_halves(self) -> bool:
        return isinstance(self.outbox, HalfOutbox)

    @contextmanager
    def session(self) -> Iterator[Session]:
        with Session(self.engine) as session, session.begin():
            yield session

    def insert(self, session: Session | Connection, number: int) -> None:
        session.execute(self.insertion(number))

    def insertion(self, number: int) -> Any:
        return text(f"INSERT INTO {self.table} VALUES ({number}, 0)")

    def has(self, number: int) -> bool:
        with self.engine.connect() as connection:
            return connection.execute(text(f"SELECT 1 FROM {self.table} WHERE id = {number}")).first() is not None

    def publish(self, session: Session, topic: str, value: str, key: str | None = None) -> Receipt:
        """Publish a message; without a key it has the topic's, and so an order."""
        return self.outbox.publish(session, Message(topic, value, topic if key is None else key))

    def records(self, topic: str) -> list[Any]:
        """The messages of a topic; in memory the outbox has them."""
        raise NotImplementedError

    def published(self, topic: str, outbox: Outbox | HalfOutbox | None = None) -> list[str]:
        """The values of all that is published on a topic, through an outbox, in order, once nothing more can come."""
        del outbox
        return [(record.value or b"").decode() for record in self.records(topic)]

    def halves(self) -> int:
        return 0


class MemoryPlace(Place):
    def __init__(
        self, kind: type[InMemoryOutbox | InMemoryHalfOutbox], engine: Engine, async_url: str, url: str | None
    ) -> None:
        self._topics = [f"topic{number}" for number in range(50)]
        self._kind = kind
        outbox = kind("orders", topics=dict.fromkeys(self._topics, PARTITIONS))
        super().__init__(engine, outbox, f"stock_{uuid.uuid4().hex[:8]}", url)
        self._async_url = async_url
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.table} (id int PRIMARY KEY, count int NOT NULL)"))

    def topic(self) -> str:
        return self._topics.pop()

    def other_outbox(self, service: str) -> Outbox | HalfOutbox:
        return self._kind(service)

    def async_engine(self) -> AsyncEngine:
        engine = create_async_engine(self._async_url, poolclass=NullPool)
        if engine.dialect.name == "sqlite":
            let_sqlite_have_savepoints(engine.sync_engine)
        return engine

    def published(self, topic: str, outbox: Outbox | HalfOutbox | None = None) -> list[str]:
        memory = outbox or self.outbox
        assert isinstance(memory, InMemoryOutbox | InMemoryHalfOutbox)
        return [(message.value or b"").decode() for message in memory.published if message.topic == topic]


class RowsPlace(Place):
    """Rows that no relay takes away: what is committed stays in the message table."""

    checks_topics = False

    def __init__(self, site: Site) -> None:
        self._site = site
        outbox = Outbox("orders", tables=site.tables)
        super().__init__(site.engine(), outbox, f"{site.name}_stock", site.postgres_url)
        message_rows.create(site)
        site.sql(f"CREATE TABLE {self.table} (id int PRIMARY KEY, count int NOT NULL)")

    def topic(self) -> str:
        return f"topic{self.number()}"

    def other_outbox(self, service: str) -> Outbox | HalfOutbox:
        return Outbox(service, tables=self._site.tables)

    def records(self, topic: str) -> list[PublishedMessage]:
        with self._site.connect() as connection:
            return [row for row in rows_of(connection, self._site.tables) if row.topic == topic]


class RealPlace(Place):
    def __init__(self, shop: Shop) -> None:
        super().__init__(shop.engine, shop.outbox, shop.table, shop.site.postgres_url)
        self._shop = shop

    def topic(self) -> str:
        return self._shop.site.topic(self._shop.topic())

    def number(self) -> int:
        return self._shop.number()

    def other_outbox(self, service: str) -> Outbox | HalfOutbox:
        return self._shop.site.half_outbox(service)

    def records(self, topic: str) -> list[VisibleRecord]:
        self._shop.site.wait_settled()
        return read_committed(self._shop.site.kafka(), [topic])

    def halves(self) -> int:
        return len(self._shop.site.halves())


def let_sqlite_have_savepoints(engine: Engine) -> None:
    """What SQLAlchemy's manual says of pysqlite: by itself it begins no transaction at a SAVEPOINT."""

    def connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)
