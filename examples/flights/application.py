"""The application: inserts flights into its own tables and publishes departures, both or neither."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import BigInteger, Engine, Integer, MetaData, String, Table, Text, create_engine, insert, select, text
from sqlalchemy import Column as SqlColumn
from sqlalchemy.orm import Session

from examples.flights.digest import digest
from examples.flights.plan import Flight, PlannedTransaction, make_plan, share_of
from outbox import Message, Outbox

DEPARTURES = "flights.departures"
DELAYS = "flights.delays"
TOPICS = (DEPARTURES, DELAYS)
GROUP = "flights"

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
    SqlColumn("carrier", String(3), nullable=False),
)
told = Table(
    "flights_told",
    metadata,
    SqlColumn("message_id", Text, primary_key=True),
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


@dataclass(frozen=True, slots=True)
class Diary:
    """What a process did last, in a file that outlives it: `attempt <number> <transaction id>`, `rolled-back <number>`.

    Args:
        path: The file.
    """

    path: Path

    def write(self, line: str) -> None:
        """Append a line."""
        with self.path.open("a") as file:
            file.write(line + "\n")

    def rolled_back(self) -> set[int]:
        """Numbers of the transactions that were rolled back on purpose."""
        return {int(words[1]) for words in self._lines() if words[0] == "rolled-back"}

    def last_attempt(self) -> str:
        """Transaction id of the last attempt."""
        return next(words[2] for words in reversed(self._lines()) if words[0] == "attempt")

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []


def make_engine(url: str) -> Engine:
    """Return an engine for a `postgresql://` URL."""
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), pool_size=1)


def run(transaction: PlannedTransaction, session: Session, outbox: Outbox, diary: Diary) -> None:
    """One local transaction: count the aircraft's departures, insert the flights, publish the messages."""
    try:
        with session.begin():
            attempts = {_tell(flight, transaction.number, session, outbox) for flight in transaction.flights}
            diary.write(f"attempt {transaction.number} {attempts.pop()}")
            _reconsider(transaction)
    except ChangedItsMind:
        diary.write(f"rolled-back {transaction.number}")


def _reconsider(transaction: PlannedTransaction) -> None:
    if transaction.rolls_back:
        raise ChangedItsMind


def _tell(flight: Flight, number: int, session: Session, outbox: Outbox) -> str:
    """Insert a flight and publish it; the id of the transaction."""
    count = None
    if flight.tail_number is not None:
        count = session.execute(_COUNT, {"tail_number": flight.tail_number}).scalar_one()
    session.execute(insert(flight_table).values(row=flight.row, transaction=number, carrier=flight.carrier))
    receipts = []
    for message in _messages(flight, count):
        receipt = outbox.publish(session, message)
        shape = digest(message.key_bytes(), message.value_bytes(), message.header_list())
        session.execute(insert(told).values(message_id=receipt.message_id, topic=message.topic, digest=shape))
        receipts.append(receipt)
    return receipts[0].transaction_id


def _messages(flight: Flight, count: int | None) -> list[Message]:
    body = {
        "row": flight.row,
        "tail_number": flight.tail_number,
        "departure": count,
        "carrier": flight.carrier,
        "flight": flight.number,
        "origin": flight.origin,
        "destination": flight.destination,
        "scheduled": flight.scheduled,
        "delay": flight.delay,
    }
    headers = {"type": "departure", "carrier": flight.carrier}
    departure = Message(DEPARTURES, value=json.dumps(body), key=flight.tail_number, headers=headers)
    if not flight.is_late:
        return [departure]
    delay = {"row": flight.row, "departure": count, "delay": flight.delay}
    return [departure, Message(DELAYS, value=json.dumps(delay), key=flight.tail_number, headers={"type": "delay"})]


def done(engine: Engine) -> set[int]:
    """Numbers of the transactions that are committed."""
    with Session(engine) as session:
        return set(session.scalars(select(flight_table.c.transaction).distinct()))


def work(rows: int | None, worker: int, workers: int, diary: Diary, environ: Mapping[str, str]) -> None:
    """Do one process's share of the plan, going on where a process before it was killed."""
    engine = make_engine(environ["OUTBOX_POSTGRES_URL"])
    finished = done(engine) | diary.rolled_back()
    with Outbox.from_env(environ) as outbox, Session(engine) as session:
        for transaction in share_of(make_plan(rows), worker, workers):
            if transaction.number not in finished:
                run(transaction, session, outbox, diary)


if __name__ == "__main__":
    given_rows, given_worker, given_workers, given_diary = sys.argv[1:]
    work(
        None if given_rows == "all" else int(given_rows),
        int(given_worker),
        int(given_workers),
        Diary(Path(given_diary)),
        os.environ,
    )
