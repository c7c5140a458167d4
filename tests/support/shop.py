"""A small application for the tests: one business table, and sessions that publish."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message, Receipt
from outbox._failpoints import VARIABLE as FAILPOINT
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.testing import VisibleRecord
from tests.support.harness import Site


class Shop:
    def __init__(self, site: Site, publish_timeout_seconds: float = 5.0, **options: Any) -> None:
        self.site = site
        self.table = f"{site.name}_stock"
        self.engine: Engine = site.engine(pool_size=16)
        self.outbox: HalfOutbox = site.half_outbox(publish_timeout_seconds=publish_timeout_seconds, **options)
        self._numbers = itertools.count(1)
        site.sql(f"CREATE TABLE {self.table} (id int PRIMARY KEY, count int NOT NULL)")

    def topic(self) -> str:
        name = f"topic{next(self._numbers)}"
        self.site.create_topics(name)
        return name

    def number(self) -> int:
        return next(self._numbers)

    @contextmanager
    def session(self) -> Iterator[Session]:
        with Session(self.engine) as session, session.begin():
            yield session

    def insert(self, session: Session, number: int) -> None:
        session.execute(text(f"INSERT INTO {self.table} VALUES (:id, 0)"), {"id": number})

    def publish(self, session: Session, topic: str, value: str, key: str | None = None) -> Receipt:
        """Publish a message to a topic of this shop; without a key it has the topic's, and so an order."""
        return self.outbox.publish(session, Message(self.site.topic(topic), value, topic if key is None else key))

    @contextmanager
    def buyer(self, topic: str, number: int, failpoint: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """An application in a process of its own that dies or stops at a failpoint, and the id of its transaction."""
        command = [sys.executable, "-m", "tests.support.buyer", self.table, str(number), self.site.topic(topic)]
        environment = {**self.site.environment(), FAILPOINT: failpoint}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process, process.stdout.readline().strip() if process.stdout else ""
            finally:
                process.kill()

    def has(self, number: int) -> bool:
        return bool(self.site.sql(f"SELECT 1 FROM {self.table} WHERE id = %s", number))

    def delivered(self, count: int, topic: str) -> list[str]:
        """Wait for so many messages; their values in the order of partition and offset."""
        return [(record.value or b"").decode() for record in self.records(count, topic)]

    def records(self, count: int, topic: str) -> list[VisibleRecord]:
        """Wait for so many messages; no message may be there twice."""
        found = self.site.wait_visible(count, topic)
        assert len(found) == count
        return found

    def assert_nothing(self, topic: str, number: int | None = None) -> None:
        """Check, once all is settled, that a topic has no message, and the table no row of this number."""
        self.site.wait_settled()
        assert self.site.read(topic) == []
        assert number is None or not self.has(number)

    def ops(self, transaction_id: str) -> list[tuple[OpSource, OpEntry]]:
        return [(source, entry) for source, entry in self.site.ops() if entry.transaction_id == transaction_id]

    def kinds(self, transaction_id: str) -> set[OpKind]:
        return {entry.kind for _, entry in self.ops(transaction_id)}

    def marked(self, transaction_id: str) -> bool:
        """Whether the application's own marker is there; the checker may have sent one, too."""
        return any(source is OpSource.PRODUCER for source, _ in self.ops(transaction_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.outbox.close()
