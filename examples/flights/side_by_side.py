"""The modes beside each other: what the processes of each did, and which way its messages took. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from examples.flights.kafka_outage import Span
from examples.flights.modes import Mode, mode_of_message
from examples.flights.reconcile import Reconciliation
from outbox.protocol.names import ORIGIN_HEADER, SERVICE_HEADER
from outbox.testing import VisibleRecord

BESIDE_SECONDS = 10.0
"""Length of the spans before and after the outage with which it is compared."""

Ways = Counter[tuple[str, bool]]
"""Number of visible messages by service, and whether they were rows."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Transactions that a mode committed per second, around the outage.

    Args:
        before: In the last seconds before it.
        during: While there was no process of Kafka.
        after: In the first seconds in which Kafka answered again.
        pause: Longest time without a COMMIT that returned in all of that, seconds.
    """

    before: float
    during: float
    after: float
    pause: float


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """What one mode did.

    Args:
        rolled_back: Transactions that were rolled back on purpose.
        refused: Attempts at a transaction that the outbox refused, by error.
        told: Messages of the transactions that committed.
        halves: Messages that are visible and were sent as halves.
        rows: Messages that are visible and were rows of the message table.
        wrong: Messages that were lost, duplicated, phantom or out of order, in both places.
        rates: Transactions per second around the outage; None if there was none.
    """

    committed: int
    rolled_back: int
    killed: int
    refused: Mapping[str, int]
    told: int
    halves: int
    rows: int
    wrong: int
    rates: Rates | None

    @property
    def stalled(self) -> bool:
        """Whether the mode committed nothing in the outage, although it had work left."""
        return self.rates is not None and self.rates.during == 0 and self.rates.after > 0

    def as_json(self) -> dict[str, Any]:
        """Return the figures for `summary.json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Activity:
    """What the processes of a mode noted.

    Args:
        rolled_back: Transactions that were rolled back on purpose.
        commit_times: When COMMIT returned, seconds since 1970.
        refused: Attempts that the outbox refused, by error.
    """

    rolled_back: int = 0
    commit_times: Iterable[float] = ()
    refused: Counter[str] = field(default_factory=Counter)
    killed: int = 0


@dataclass(frozen=True, slots=True)
class Messages:
    """What became of the messages of all modes.

    Args:
        told: Ids of the messages of the transactions that committed.
    """

    told: Iterable[str]
    ways: Ways
    places: Iterable[Reconciliation]


def ways_of(records: Iterable[VisibleRecord]) -> Ways:
    """Count visible messages by the way that they took: only the origin of a half begins with a number."""
    headers = (dict(record.headers) for record in records)
    return Counter(
        ((found.get(SERVICE_HEADER) or b"").decode(), not (found.get(ORIGIN_HEADER) or b"")[:1].isdigit())
        for found in headers
    )


def rates_of(commit_times: Iterable[float], outage: Span) -> Rates:
    """Return how many transactions committed per second before, during and after an outage."""
    first, last = outage.start - BESIDE_SECONDS, outage.back + BESIDE_SECONDS
    times = [time for time in sorted(commit_times) if first <= time < last]
    return Rates(
        before=_rate(times, first, outage.start),
        during=_rate(times, outage.start, outage.stop),
        after=_rate(times, outage.back, last),
        pause=max((after - before for before, after in pairwise(times)), default=0.0),
    )


def _rate(times: Iterable[float], start: float, stop: float) -> float:
    return sum(start <= time < stop for time in times) / (stop - start)


def figures_of(mode: Mode, committed: int, activity: Activity, messages: Messages, outage: Span | None) -> ModeFigures:
    """Put together what one mode did."""
    wrong = (id_ for place in messages.places for id_ in place.wrong)
    return ModeFigures(
        committed=committed,
        rolled_back=activity.rolled_back,
        killed=activity.killed,
        refused=dict(activity.refused),
        told=_count(messages.told, mode),
        halves=messages.ways[mode.service, False],
        rows=messages.ways[mode.service, True],
        wrong=_count(wrong, mode),
        rates=rates_of(activity.commit_times, outage) if outage else None,
    )


def _count(ids: Iterable[str], mode: Mode) -> int:
    return sum(mode_of_message(id_) is mode for id_ in ids)
