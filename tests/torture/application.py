"""The tortured application: counts keys in Postgres and tells every count, until it is asked to stop or killed."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence

from psycopg import OperationalError
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from examples.flights.digest import digest
from outbox import Message, Outbox, OutboxError
from outbox.service.signals import stop_on_signals

KEYS = 24
PAUSE_SECONDS = 0.2

DDL = """
CREATE TABLE {name}_count (key text PRIMARY KEY, departures bigint NOT NULL);
CREATE TABLE {name}_told (message_id text PRIMARY KEY, topic text NOT NULL, digest text NOT NULL);
"""


class _Changed(Exception):  # noqa: N818 - it is no error, it is what rolls back
    """Roll back on purpose."""


class Application:
    """One process of it.

    Args:
        name: Prefix of its tables and topics.
        topics: Real topics.
        engine: Its database.
        outbox: Its outbox.
        seed: Of its choices.
    """

    def __init__(self, name: str, topics: Sequence[str], engine: Engine, outbox: Outbox, seed: int) -> None:
        self._topics = topics
        self._engine = engine
        self._outbox = outbox
        self._random = random.Random(seed)
        self._count = text(
            f"INSERT INTO {name}_count AS c (key, departures) VALUES (:key, 1)"
            " ON CONFLICT (key) DO UPDATE SET departures = c.departures + 1 RETURNING departures"
        )
        self._told = text(f"INSERT INTO {name}_told VALUES (:id, :topic, :digest)")

    def step(self) -> None:
        """One local transaction; what the faults do to it is expected, and it is simply tried anew."""
        try:
            with Session(self._engine) as session, session.begin():
                self._tell(session)
        except _Changed:
            return
        except (OutboxError, DBAPIError, OperationalError):
            time.sleep(PAUSE_SECONDS)

    def _tell(self, session: Session) -> None:
        key = f"key-{self._random.randrange(KEYS)}"
        for _ in range(self._random.randint(1, 3)):
            count = session.execute(self._count, {"key": key}).scalar_one()
            self._publish(session, key, count, self._topics[0])
            if self._random.random() < 0.3:
                self._publish(session, key, count, self._topics[1])
        if self._random.random() < 0.1:
            self._publish_in_vain(session, key)
        if self._random.random() < 0.1:
            raise _Changed

    def _publish_in_vain(self, session: Session, key: str) -> None:
        """A message inside a SAVEPOINT that is rolled back must never be delivered."""
        savepoint = session.begin_nested()
        self._outbox.publish(session, Message(self._topics[0], value=b'{"departure": 0}', key=key))
        savepoint.rollback()

    def _publish(self, session: Session, key: str, count: int, topic: str) -> None:
        message = Message(topic, value=json.dumps({"departure": count}), key=key, headers={"type": "count"})
        receipt = self._outbox.publish(session, message)
        shape = digest(message.key_bytes(), message.value_bytes(), message.header_list())
        session.execute(self._told, {"id": receipt.message_id, "topic": topic, "digest": shape})


def main() -> None:
    """Run until SIGTERM."""
    name, seed = sys.argv[1], int(sys.argv[2])
    stop = stop_on_signals()
    url = os.environ["OUTBOX_POSTGRES_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 3})
    with Outbox.from_env() as outbox:
        application = Application(name, (f"{name}.a", f"{name}.b"), engine, outbox, seed)
        while not stop.is_set():
            application.step()


if __name__ == "__main__":
    main()
