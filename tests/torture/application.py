"""The tortured application: counts keys in Postgres and tells every count; each mode has keys of its own."""

import json
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from sqlalchemy import CursorResult, Engine, TextClause, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from examples.flights.digest import digest
from outbox import HalfOutbox, Message, Outbox, OutboxError
from outbox._failpoints import failpoint
from outbox._service.process import stop_on_signals
from outbox.protocol.names import TRANSACTION_HEADER
from outbox.settings import TableNames
from outbox.transaction import Outcome, Receipt
from tests.torture.diary import ANSWERED, COMMITTED, FAILED, Diary, Entry
from tests.torture.evidence import ID_HEADER, TOPICS, transaction_of

KEYS = 24
PAUSE_SECONDS = 0.2
THINKING_SECONDS = 0.02
PATIENCE = ("0", "1s")
"""How long an application waits for a lock: for ever, or so that it goes on with other keys."""

ASKED_SECONDS = 10.0
"""So long an application asks what became of a transaction; the run asks once more in the end."""

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
    def __init__(
        self,
        name: str,
        topics: Sequence[str],  # real topics; the last one has keys of its own
        engine: Engine,
        outbox: HalfOutbox | Outbox,
        diary: Diary,
        seed: int,
        short_share: float,  # share of local transactions whose messages all go to the last topic
    ) -> None:
        self._name = name
        self._topics = topics
        self._engine = engine
        self._outbox = outbox
        self._diary = diary
        self._short_share = short_share
        self._told_id = self._transaction_id = self._topic = ""
        self._random = random.Random(seed)
        self._mode = "half" if isinstance(outbox, HalfOutbox) else "table"
        self._count = text(
            f"INSERT INTO {name}_count AS c (key, departures) VALUES (:key, 1)"
            " ON CONFLICT (key) DO UPDATE SET departures = c.departures + 1 RETURNING departures"
        )
        self._poison = text(poison(name, topics[0]))
        self._told = text(f"INSERT INTO {name}_told VALUES (:id, :mode, :message_id, :topic, :digest)")

    def step(self) -> None:
        """One local transaction; what the faults do to it is expected, and it is simply tried anew."""
        eager = partial(self._by_session, eager=True)
        ways: list[Callable[[], None]] = [self._by_session, self._by_transaction, eager]
        way = self._random.choices(ways, [6, 2, 2 if self._mode == "half" else 0])[0]
        self._told_id = self._transaction_id = self._topic = ""
        try:
            way()
        except _Changed:
            return
        except (OutboxError, DBAPIError, psycopg.Error) as error:
            self._write(FAILED, type(getattr(error, "orig", error)).__name__)
            self._ask()
        else:
            self._write(COMMITTED)
            failpoint("application.done")

    def _write(self, kind: str, detail: str = "") -> None:
        topic = self._topic.rpartition(".")[2]
        entry = Entry(kind, self._mode, self._told_id, self._transaction_id, topic, time.time(), detail)
        self._diary.write(entry)

    def _ask(self) -> None:
        """Ask what became of a transaction that failed, as one does before a retry: it may have committed."""
        deadline = time.monotonic() + ASKED_SECONDS
        answer = Outcome.OPEN
        while answer is Outcome.OPEN and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            if not self._transaction_id:
                return
            with suppress(OutboxError, DBAPIError, psycopg.Error):
                answer = self._outbox.outcome(self._transaction_id, self._engine)
        self._write(ANSWERED, answer)

    def _by_session(self, *, eager: bool = False) -> None:
        with Session(self._engine) as session, session.begin():

            def publish(message: Message) -> Receipt:
                if isinstance(self._outbox, HalfOutbox):
                    return self._outbox.publish(session, message, eager=eager)
                return self._outbox.publish(session, message)

            self._tell(session.execute, publish)  # type: ignore[arg-type]  # rows of DML
            if self._random.random() < 0.1:
                self._publish_in_vain(session)
            self._change_mind()

    def _by_transaction(self) -> None:
        if not isinstance(self._outbox, HalfOutbox):
            with self._engine.begin() as connection:
                self._tell(connection.execute, partial(self._outbox.publish, connection))
                self._change_mind()
            return
        with self._engine.connect() as connection, self._outbox.transaction(connection) as transaction:
            self._tell(connection.execute, transaction.publish)
            self._change_mind()

    def _change_mind(self) -> None:
        if self._random.random() < 0.1:
            raise _Changed

    def _tell(self, execute: Execute, publish: Publish) -> None:
        """Count a key, and tell each count; the transaction gets an id of its own."""
        short = self._random.random() < self._short_share
        key = f"{self._mode}-{'short-' * short}{self._random.randrange(KEYS)}"
        told, messages = str(uuid.uuid4()), 0
        self._told_id, self._topic = told, self._topics[-1 if short else 0]
        for _ in range(self._random.choice([1, 1, 2, 3, 12])):
            count = execute(self._count, {"key": key}).scalar_one()
            failpoint("application.begun")
            for topic in self._topics[2:] if short else self._topics[: 2 if self._random.random() < 0.3 else 1]:
                id_ = f"{told}/{messages}"
                message = Message(topic, json.dumps({"departure": count}), key, headers={ID_HEADER: id_})
                self._publish(execute, publish, id_, message)
                messages += 1
        failpoint("application.sent")

    def _publish(self, execute: Execute, publish: Publish, id_: str, message: Message) -> None:
        message_id = publish(message).message_id
        self._transaction_id = transaction_of(message_id)
        execute(
            self._told,
            {
                "id": id_,
                "mode": self._mode,
                "message_id": message_id,
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
        """Now and then, write a half that nobody can parse, or a row that nobody can deliver."""
        poisons = self._random.random() < POISON
        if producer is not None:
            if poisons:
                producer.produce(f"{self._name}.half", b"poison", headers={TRANSACTION_HEADER: b"nonsense"})
            producer.poll(0)
        elif poisons:
            with suppress(DBAPIError), self._engine.begin() as connection:
                connection.execute(self._poison)


def poison(name: str, topic: str) -> str:
    return (
        f"WITH made AS (INSERT INTO {TableNames('public', name).message} (service, topic, header_names)"
        f" VALUES ('poison', '{topic}', ARRAY['no value']) RETURNING id) INSERT INTO {name}_poison SELECT id FROM made"
    )


def main() -> None:
    """Run until SIGTERM. Arguments: mode, prefix, diary, seed, share for the last topic, name of the log."""
    mode, name, diary = sys.argv[1], sys.argv[2], Diary(Path(sys.argv[3]))
    seed, short_share = int(sys.argv[4]), float(sys.argv[5])
    stop = stop_on_signals()
    url = os.environ["OUTBOX_POSTGRES_URL"]
    options = f"-c lock_timeout={random.Random(seed).choice(PATIENCE)}"
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url, connect_timeout=3, options=options)
    )
    with HalfOutbox.from_env() if mode == "half" else Outbox.from_env() as outbox:
        producer = None
        if isinstance(outbox, HalfOutbox):
            with suppress(OutboxError):  # Kafka may be down
                outbox.ping()
            producer = _producer()
        topics = [f"{name}.{topic}" for topic in TOPICS]
        application = Application(name, topics, engine, outbox, diary, seed, short_share)
        while not stop.wait(THINKING_SECONDS):
            application.step()
            application.poison(producer)
        if producer is not None:
            producer.flush(5)


def _producer() -> Producer:
    return Producer({"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"], "log_level": 0})


if __name__ == "__main__":
    main()
