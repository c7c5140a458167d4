"""The application: inserts flights into its own tables and publishes departures, both or neither."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from sqlalchemy import BigInteger, Engine, Integer, MetaData, String, Table, Text, create_engine, insert, select, text
from sqlalchemy import Column as SqlColumn
from sqlalchemy.orm import Session

from examples.flights.crash import VARIABLE, Crash
from examples.flights.diary import Diary, diary_of
from examples.flights.digest import digest
from examples.flights.modes import Mode, message_id, part_of
from examples.flights.plan import Flight, PlannedTransaction, make_plan, share_of
from outbox import HalfOutbox, Message, Outbox
from outbox.errors import PublishFailed, TransactionFenced

DEPARTURES = "flights.departures"
DELAYS = "flights.delays"
TOPICS = (DEPARTURES, DELAYS)
ID_HEADER = "flight-id"
PER_SECOND = 20
"""Transactions that a process begins per second, at most: what goes on in an outage is then seen at a glance."""

RETRY_SECONDS = 0.25
"""Between two attempts at a transaction that was refused."""

metadata = MetaData()

aircraft = Table(
    "flights_aircraft",
    metadata,
    SqlColumn("tail_number", String(10), primary_key=True),
    SqlColumn("departures", BigInteger, nullable=False),
)
flight_table = Table(
    "flights_flight",
    metadata,
    SqlColumn("row", Integer, primary_key=True, autoincrement=False),
    SqlColumn("transaction", Integer, nullable=False, index=True),
    SqlColumn("attempt", Text, nullable=False),
    SqlColumn("mode", String(5), nullable=False),
    SqlColumn("carrier", String(3), nullable=False),
)
told = Table(
    "flights_told",
    metadata,
    SqlColumn("id", Text, primary_key=True),
    SqlColumn("topic", Text, nullable=False),
    SqlColumn("digest", Text, nullable=False),
    comment="What was published, by the application's own word: the truth of the reconciliation.",
)

_COUNT = text(
    "INSERT INTO flights_aircraft AS a (tail_number, departures) VALUES (:tail_number, 1)"
    " ON CONFLICT (tail_number) DO UPDATE SET departures = a.departures + 1 RETURNING departures"
)


class ChangedItsMind(Exception):  # noqa: N818 - it is no error, it is what rolls the transaction back
    """The application rolls a transaction back."""


def make_engine(url: str) -> Engine:
    """Return an engine for a `postgresql://` URL."""
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), pool_size=1)


class Pace:
    """Begins at most so many transactions per second; time that is lost is not made up for."""

    def __init__(self, per_second: float) -> None:
        self._seconds = 1 / per_second
        self._next = time.monotonic()

    def wait(self) -> None:
        """Wait until the next transaction may begin."""
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self._seconds


class Application:
    """One process of the application."""

    def __init__(self, mode: Mode, session: Session, outbox: HalfOutbox | Outbox, diary: Diary, crash: Crash) -> None:
        self._mode = mode
        self._session = session
        self._outbox = outbox
        self._diary = diary
        self._crash = crash

    def run(self, transaction: PlannedTransaction) -> None:
        """Run a local transaction, again and again while the outbox refuses it.

        Raises:
            PublishFailed: A mode that does not need Kafka refused it.
        """
        while not self._is_done(transaction):
            time.sleep(RETRY_SECONDS)

    def _is_done(self, transaction: PlannedTransaction) -> bool:
        try:
            self._commit(transaction)
        except ChangedItsMind:
            self._diary.roll_back(transaction.number)
        except (PublishFailed, TransactionFenced) as error:
            if isinstance(error, PublishFailed) and not self._mode.needs_kafka:
                raise
            self._diary.refuse(transaction.number, error)
            return False
        return True

    def _commit(self, transaction: PlannedTransaction) -> None:
        """Count the aircraft's departures, insert the flights and publish the messages in one local transaction."""
        attempt = uuid.uuid4().hex
        ids = (message_id(self._mode, attempt, number) for number in count())
        with self._session.begin():
            for flight in transaction.flights:
                departure = self._insert(flight, transaction.number, attempt)
                for id_, message in _messages(flight, departure, ids):
                    self._publish(id_, message)
            self._diary.attempt(transaction.number, attempt)
            self._crash.at("before-commit")
            if transaction.rolls_back:
                raise ChangedItsMind
        self._crash.at("after-commit")
        self._diary.commit(transaction.number)

    def _insert(self, flight: Flight, number: int, attempt: str) -> int | None:
        """Insert a flight; return how many departures its aircraft has now, None without an aircraft."""
        departure = None
        if flight.tail_number is not None:
            departure = self._session.execute(_COUNT, {"tail_number": flight.tail_number}).scalar_one()
        row = {"row": flight.row, "transaction": number, "attempt": attempt, "mode": self._mode.value}
        self._session.execute(insert(flight_table).values(**row, carrier=flight.carrier))
        return departure

    def _publish(self, id_: str, message: Message) -> None:
        """Publish a message, and note it in the database for the reconciliation."""
        self._outbox.publish(self._session, message)
        shape = digest(message.key_bytes(), message.value_bytes(), message.header_list())
        self._session.execute(insert(told).values(id=id_, topic=message.topic, digest=shape))


def _messages(flight: Flight, departure: int | None, ids: Iterator[str]) -> Iterator[tuple[str, Message]]:
    """Yield the messages about a flight, with ids of the application's own."""
    body = {
        "row": flight.row,
        "tail_number": flight.tail_number,
        "departure": departure,
        "carrier": flight.carrier,
        "flight": flight.number,
        "origin": flight.origin,
        "destination": flight.destination,
        "scheduled": flight.scheduled,
        "delay": flight.delay,
    }
    key, id_ = flight.tail_number, next(ids)
    headers = {ID_HEADER: id_, "type": "departure", "carrier": flight.carrier}
    yield id_, Message(DEPARTURES, value=json.dumps(body), key=key, headers=headers)
    if flight.is_late:
        id_ = next(ids)
        delay = {"row": flight.row, "departure": departure, "delay": flight.delay}
        yield id_, Message(DELAYS, value=json.dumps(delay), key=key, headers={ID_HEADER: id_, "type": "delay"})


def done(engine: Engine) -> set[int]:
    """Return the numbers of the transactions that committed."""
    with Session(engine) as session:
        return set(session.scalars(select(flight_table.c.transaction).distinct()))


def work(rows: int | None, mode: Mode, worker: int, workers: int, folder: Path, environ: Mapping[str, str]) -> None:
    """Do one process's share of the plan, going on where a process before it was killed."""
    engine = make_engine(environ["OUTBOX_POSTGRES_URL"])
    diary = diary_of(folder, mode, worker)
    finished = done(engine) | diary.rolled_back()
    made = HalfOutbox.from_env(environ) if mode is Mode.HALF else Outbox.from_env(environ)
    with made as outbox, Session(engine) as session:
        application, pace = (
            Application(mode, session, outbox, diary, Crash(environ.get(VARIABLE, ""))),
            Pace(PER_SECOND),
        )
        for transaction in share_of(part_of(make_plan(rows), mode), worker, workers):
            if transaction.number not in finished:
                pace.wait()
                application.run(transaction)


if __name__ == "__main__":
    given_rows, given_mode, given_worker, given_workers, given_folder = sys.argv[1:]
    work(
        None if given_rows == "all" else int(given_rows),
        Mode(given_mode),
        int(given_worker),
        int(given_workers),
        Path(given_folder),
        os.environ,
    )
