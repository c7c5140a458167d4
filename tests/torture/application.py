"""The tortured application: counts keys in Postgres and tells every count, until it is asked to stop or killed."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from sqlalchemy import CursorResult, Engine, TextClause, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from examples.flights.digest import digest
from outbox import Message, Outbox, OutboxError
from outbox._failpoints import failpoint
from outbox._receipts.receipt import Receipt
from outbox._service.signals import stop_on_signals
from outbox.protocol.names import TRANSACTION_HEADER

KEYS = 24
PAUSE_SECONDS = 0.2
THINKING_SECONDS = 0.01
PATIENCE = ("0", "1s")
"""How long an application waits for a lock: for ever, or so that it goes on with other keys."""

POISON = 0.003
"""Share of steps that write a half which nobody can parse."""

DDL = """
CREATE TABLE {name}_count (key text PRIMARY KEY, departures bigint NOT NULL);
CREATE TABLE {name}_told (message_id text PRIMARY KEY, topic text NOT NULL, digest text NOT NULL);
"""

Execute = Callable[[TextClause, Mapping[str, Any]], CursorResult[Any]]
Publish = Callable[[Message], Receipt]


class _Changed(Exception):  # noqa: N818 - it is no error, it is what rolls back
    """Roll back on purpose."""


class Application:
    """One process of it.

    Args:
        name: Prefix of its tables and topics.
        topics: Real topics.
        engine: Its database.
        outbox: Its outbox.
        acknowledged: File that takes the ids of transactions whose COMMIT returned.
        seed: Of its choices.
    """

    def __init__(
        self, name: str, topics: Sequence[str], engine: Engine, outbox: Outbox, acknowledged: Path, seed: int
    ) -> None:
        self._name = name
        self._topics = topics
        self._engine = engine
        self._outbox = outbox
        self._acknowledged = acknowledged
        self._random = random.Random(seed)
        self._count = text(
            f"INSERT INTO {name}_count AS c (key, departures) VALUES (:key, 1)"
            " ON CONFLICT (key) DO UPDATE SET departures = c.departures + 1 RETURNING departures"
        )
        self._told = text(f"INSERT INTO {name}_told VALUES (:id, :topic, :digest)")

    def step(self) -> None:
        """One local transaction; what the faults do to it is expected, and it is simply tried anew."""
        way = self._random.choices([self._by_session, self._by_eager_session, self._by_transaction], [6, 2, 2])[0]
        try:
            transaction_id = way()
        except _Changed:
            return
        except (OutboxError, DBAPIError, psycopg.Error):
            time.sleep(PAUSE_SECONDS)
        else:
            self._acknowledge(transaction_id)
            failpoint("application.done")

    def _acknowledge(self, transaction_id: str) -> None:
        """Write down that COMMIT returned: the page cache survives the death of this process."""
        with self._acknowledged.open("a") as file:
            file.write(f"{transaction_id}\n")

    def _by_session(self, *, eager: bool = False) -> str:
        with Session(self._engine) as session, session.begin():

            def publish(message: Message) -> Receipt:
                return self._outbox.publish(session, message, eager=eager)

            transaction_id = self._tell(session.execute, publish)  # type: ignore[arg-type]  # rows of DML
            if self._random.random() < 0.1:
                self._publish_in_vain(session)
            self._change_mind()
        return transaction_id

    def _by_eager_session(self) -> str:
        return self._by_session(eager=True)

    def _by_transaction(self) -> str:
        with self._engine.connect() as connection, self._outbox.transaction(connection) as transaction:
            transaction_id = self._tell(connection.execute, transaction.publish)
            self._change_mind()
        return transaction_id

    def _change_mind(self) -> None:
        if self._random.random() < 0.1:
            raise _Changed

    def _tell(self, execute: Execute, publish: Publish) -> str:
        """Count a key, and tell each count; the transaction's id."""
        key = f"key-{self._random.randrange(KEYS)}"
        transaction_id = ""
        for _ in range(self._random.choice([1, 1, 2, 3, 12])):
            count = execute(self._count, {"key": key}).scalar_one()
            failpoint("application.begun")
            transaction_id = self._publish(execute, publish, key, count, self._topics[0])
            if self._random.random() < 0.3:
                self._publish(execute, publish, key, count, self._topics[1])
        failpoint("application.sent")
        return transaction_id

    def _publish(self, execute: Execute, publish: Publish, key: str, count: int, topic: str) -> str:
        message = Message(topic, value=json.dumps({"departure": count}), key=key, headers={"type": "count"})
        receipt = publish(message)
        shape = digest(message.key_bytes(), message.value_bytes(), message.header_list())
        execute(self._told, {"id": receipt.message_id, "topic": topic, "digest": shape})
        return receipt.transaction_id

    def _publish_in_vain(self, session: Session) -> None:
        """A message inside a SAVEPOINT that is rolled back must never be delivered."""
        savepoint = session.begin_nested()
        self._outbox.publish(session, Message(self._topics[0], value=b'{"departure": 0}', key="in vain"))
        savepoint.rollback()

    def poison(self, producer: Producer) -> None:
        """Now and then, write a half that nobody can parse."""
        if self._random.random() < POISON:
            producer.produce(f"{self._name}.half", b"poison", headers={TRANSACTION_HEADER: b"nonsense"})
        producer.poll(0)


def main() -> None:
    """Run until SIGTERM. Arguments: prefix, file for acknowledged transactions, seed, name of the log."""
    name, acknowledged, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    stop = stop_on_signals()
    url = os.environ["OUTBOX_POSTGRES_URL"]
    options = f"-c lock_timeout={random.Random(seed).choice(PATIENCE)}"
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url, connect_timeout=3, options=options)
    )
    producer = Producer({"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"], "log_level": 0})
    with Outbox.from_env() as outbox:
        application = Application(name, (f"{name}.a", f"{name}.b"), engine, outbox, acknowledged, seed)
        while not stop.wait(THINKING_SECONDS):
            application.step()
            application.poison(producer)
    producer.flush(5)


if __name__ == "__main__":
    main()
