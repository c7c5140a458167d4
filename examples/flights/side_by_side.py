"""The modes beside each other: what the processes of each did, and which way its messages took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from examples.flights.diary import Diary
from examples.flights.kafka_outage import Span
from examples.flights.modes import Mode
from outbox.protocol.names import ORIGIN_HEADER, PRODUCER_GROUP_HEADER
from outbox.testing import VisibleRecord

Ways = Counter[tuple[str, bool]]
"""Number of visible messages by producer group, and whether they were rows."""


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """What one mode did.

    Args:
        committed: Transactions that committed.
        rolled_back: Transactions that were rolled back on purpose.
        in_outage: Transactions whose COMMIT returned while there was no Kafka.
        after_outage: Transactions whose COMMIT returned later.
        refused: Attempts at a transaction that the outbox refused.
        messages: Messages that are visible.
        rows: Those of them that were rows of the message table.
        killed: Processes that were killed.
    """

    committed: int
    rolled_back: int
    in_outage: int
    after_outage: int
    refused: int
    messages: int
    rows: int
    killed: int

    def as_json(self) -> dict[str, Any]:
        """Return the figures for `summary.json`."""
        return asdict(self)


def ways_of(records: Iterable[VisibleRecord]) -> Ways:
    """Count visible messages by the way that they took: only the origin of a half begins with a number."""
    headers = (dict(record.headers) for record in records)
    return Counter(
        ((found.get(PRODUCER_GROUP_HEADER) or b"").decode(), not (found.get(ORIGIN_HEADER) or b"")[:1].isdigit())
        for found in headers
    )


def figures_of(
    mode: Mode, committed: int, killed: int, diaries: Sequence[Diary], ways: Ways, outage: Span | None
) -> ModeFigures:
    """Put together what one mode did.

    Args:
        mode: The mode.
        committed: Transactions that committed.
        killed: Processes that were killed.
        diaries: Of its processes.
        ways: The ways of all visible messages.
        outage: When there was no Kafka.
    """
    times = [time for diary in diaries for time in diary.commit_times()]
    halves, rows = ways[mode.group, False], ways[mode.group, True]
    return ModeFigures(
        committed=committed,
        rolled_back=sum(len(diary.rolled_back()) for diary in diaries),
        in_outage=sum(outage.start <= time < outage.stop for time in times) if outage else 0,
        after_outage=sum(outage.stop <= time for time in times) if outage else 0,
        refused=sum(diary.refusals() for diary in diaries),
        messages=halves + rows,
        rows=rows,
        killed=killed,
    )


def stalled(figures: ModeFigures) -> bool:
    """Return whether a mode committed nothing in the outage, and went on after it."""
    return figures.in_outage == 0 and figures.after_outage > 0
