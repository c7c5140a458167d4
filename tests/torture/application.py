"""The tortured application: counts keys in Postgres and tells every count, until it is asked to stop or killed.

Its mode is that of its outbox. Each mode has keys of its own, because modes promise no order among each other.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
from outbox.settings import TableNames
from tests.torture.evidence import ID_HEADER

KEYS = 24
PAUSE_SECONDS = 0.2
THINKING_SECONDS = 0.02
PATIENCE = ("0", "1s")
"""How long an application waits for a lock: for ever, or so that it goes on with other keys."""

POISON = 0.003
"""Share of steps that write a half which nobody can parse, or a row which nobody can deliver."""

DDL = """
CREATE TABLE {name}_count (key text PRIMARY KEY, departures bigint NOT NULL);
CREATE TABLE {name}_told (
    id text PRIMARY KEY, mode text NOT NULL, message_id text NOT NULL, topic text NOT NULL, digest text NOT NULL
);
CREATE TABLE {name}_poison (row_id bigint PRIMARY KEY);
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
        self._mode = outbox.settings.mode
        self._count = text(
            f"INSERT INTO {name}_count AS c (key, departures) VALUES (:key, 1)"
            " ON CONFLICT (key) DO UPDATE SET departures = c.departures + 1 RETURNING departures"
        )
        self._poison = text(
            f"WITH made AS (INSERT INTO {TableNames('public', name).message} (producer_group, topic, header_names)"
            f" VALUES ('poison', :topic, ARRAY['no value']) RETURNING id) INSERT INTO {name}_poison SELECT id FROM made"
        )
        self._told = text(f"INSERT INTO {name}_told VALUES (:id, :mode, :message_id, :topic, :digest)")

    def step(self) -> None:
        """One local transaction; what the faults do to it is expected, and it is simply tried anew."""
        ways = [self._by_session, self._by_transaction, self._by_eager_session]
        way = self._random.choices(ways, [6, 2, 2 if self._mode == "half" else 0])[0]
        try:
            told = way()
        except _Changed:
            return
        except (OutboxError, DBAPIError, psycopg.Error):
            time.sleep(PAUSE_SECONDS)
        else:
            self._acknowledge(told)
            failpoint("application.done")

    def _acknowledge(self, told: str) -> None:
        """Write down that COMMIT returned: the page cache survives the death of this process."""
        with self._acknowledged.open("a") as file:
            file.write(f"{self._mode} {told}\n")

    def _by_session(self, *, eager: bool = False) -> str:
        with Session(self._engine) as session, session.begin():

            def publish(message: Message) -> Receipt:
                return self._outbox.publish(session, message, eager=eager)

            told = self._tell(session.execute, publish)  # type: ignore[arg-type]  # rows of DML
            if self._random.random() < 0.1:
                self._publish_in_vain(session)
            self._change_mind()
        return told

    def _by_eager_session(self) -> str:
        return self._by_session(eager=True)

    def _by_transaction(self) -> str:
        with self._engine.connect() as connection, self._outbox.transaction(connection) as transaction:
            told = self._tell(connection.execute, transaction.publish)
            self._change_mind()
        return told

    def _change_mind(self) -> None:
        if self._random.random() < 0.1:
            raise _Changed

    def _tell(self, execute: Execute, publish: Publish) -> str:
        """Count a key, and tell each count; return an id of its own for the transaction."""
        key, told, messages = f"{self._mode}-{self._random.randrange(KEYS)}", str(uuid.uuid4()), 0
        for _ in range(self._random.choice([1, 1, 2, 3, 12])):
            count = execute(self._count, {"key": key}).scalar_one()
            failpoint("application.begun")
            for topic in self._topics[: 2 if self._random.random() < 0.3 else 1]:
                id_ = f"{told}/{messages}"
                message = Message(topic, json.dumps({"departure": count}), key, headers={ID_HEADER: id_})
                self._publish(execute, publish, id_, message)
                messages += 1
        failpoint("application.sent")
        return told

    def _publish(self, execute: Execute, publish: Publish, id_: str, message: Message) -> None:
        """Publish a message and tell it; in auto mode it has no message id yet."""
        receipt = publish(message)
        execute(
            self._told,
            {
                "id": id_,
                "mode": self._mode,
                "message_id": "" if self._mode == "auto" else receipt.message_id,
                "topic": message.topic,
                "digest": digest(message.key_bytes(), message.value_bytes(), message.header_list()),
            },
        )

    def _publish_in_vain(self, session: Session) -> None:
        """A message inside a SAVEPOINT that is rolled back must never be delivered."""
        savepoint = session.begin_nested()
        self._outbox.publish(session, Message(self._topics[0], value=b'{"departure": 0}', key="in vain"))
        savepoint.rollback()

    def poison(self, producer: Producer | None) -> None:
        """Now and then, write a half that nobody can parse, or a row that nobody can deliver.

        Args:
            producer: For the half; None: write the row.
        """
        poisons = self._random.random() < POISON
        if producer is not None:
            if poisons:
                producer.produce(f"{self._name}.half", b"poison", headers={TRANSACTION_HEADER: b"nonsense"})
            producer.poll(0)
        elif poisons:
            with suppress(DBAPIError), self._engine.begin() as connection:
                connection.execute(self._poison, {"topic": self._topics[0]})


def main() -> None:
    """Run until SIGTERM, in the mode of the environment.

    Arguments: prefix, file for acknowledged transactions, seed, name of the log.
    """
    name, acknowledged, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    stop = stop_on_signals()
    url = os.environ["OUTBOX_POSTGRES_URL"]
    options = f"-c lock_timeout={random.Random(seed).choice(PATIENCE)}"
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url, connect_timeout=3, options=options)
    )
    with Outbox.from_env() as outbox:
        with suppress(OutboxError):  # Kafka may be down; in table mode it is not asked
            outbox.ping()
        producer = _producer() if outbox.settings.mode == "half" else None
        application = Application(name, (f"{name}.a", f"{name}.b"), engine, outbox, acknowledged, seed)
        while not stop.wait(THINKING_SECONDS):
            application.step()
            application.poison(producer)
        if producer is not None:
            producer.flush(5)


def _producer() -> Producer:
    return Producer({"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"], "log_level": 0})


if __name__ == "__main__":
    main()
