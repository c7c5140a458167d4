"""Derive from the state of delivery which callback rows may be purged, and which are overdue. Pure.

A transaction is settled when it is below the relay's checkpoint and not in the discard topic. Only then its row
may be purged (R11). A committed row that is old, and not settled, is a finding (R27).
"""

import enum
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.identifiers import make_transaction_id

FIRST_ID = "00000000-0000-0000-0000-000000000000"
"""No transaction id is before it."""

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""No transaction id is after it."""

_LOWEST = bytes(10)


@dataclass(frozen=True, slots=True)
class HalfPartition:
    """State of delivery of one half partition.

    Args:
        start: The first offset that the half partition still has.
        end: The offset behind its last record.
        checkpoint: The relay's; None: there is none that can be trusted.
        problem: Why its rows cannot be judged, or not all of them; empty if they can.
    """

    start: int
    end: int
    checkpoint: HalfCheckpoint | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ChannelProgress:
    """State of a channel's delivery when it was read.

    Args:
        discarded: Reasons of the transactions in its discard topic, by transaction id.
        malformed: Half partition and offset of the discarded halves without a known transaction id.
    """

    topic_id: str
    partitions: Mapping[int, HalfPartition]
    discarded: Mapping[str, str]
    malformed: Collection[tuple[int, int]] = frozenset()

    @property
    def problems(self) -> list[str]:
        """Why rows cannot be judged, or not all of them; one sentence for each half partition concerned."""
        return [partition.problem for partition in self.partitions.values() if partition.problem]


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """A row of state C, as the walk reads it; offsets are -1 where no half counts."""

    transaction_id: str
    service: str
    topic_id: str
    partition: int
    first_offset: int
    last_offset: int


class Delay(enum.StrEnum):
    """Why a committed transaction is not delivered."""

    UNREAD = "unread"  # no relay has read its halves yet
    PENDING = "pending"  # a relay has read its halves, and has not settled them
    DISCARDED = "discarded"
    GONE = "gone"  # its halves are not in the half topic any more: retention, records deleted by hand, or lost
    DELETED_TOPIC = "deleted_topic"
    UNKNOWN = "unknown"  # its half partition has no checkpoint that can be trusted
    ROLLED_BACK = "rolled_back"  # it has a ROLLBACK op marker and is settled: if that was obeyed, it is lost


class Ages(NamedTuple):
    """From which age, in ms, rows of settled transactions go, and other committed rows are findings."""

    settled: int
    rollback_rows: int
    undelivered: int


class Old(NamedTuple):
    """Before which moment rows of such ages were inserted, ms since 1970 by the database's clock.

    Args:
        before: Only rows whose id is before this one go. Ids begin with their time by the application's clock: what
            goes is old by both clocks.
    """

    committed_ms: int
    rollback_rows_ms: int
    undelivered_ms: int
    before: str


def old_enough(now_ms: int, ages: Ages) -> Old:
    """Return which rows are old enough at a moment, ms since 1970 by the database's clock."""
    committed, rollback_rows = now_ms - ages.settled, now_ms - ages.rollback_rows
    return Old(committed, rollback_rows, now_ms - ages.undelivered, first_id_of(max(committed, rollback_rows)))


def settled_below(progress: ChannelProgress) -> dict[int, int]:
    """Return by half partition the offset below which all halves are settled; omit unknown partitions.

    A transaction whose last half is below it is delivered, rolled back, or in the discard topic.
    """
    return {
        number: partition.checkpoint.offset
        for number, partition in progress.partitions.items()
        if partition.checkpoint is not None and not partition.problem
    }


def why_undelivered(row: CommittedRow, progress: ChannelProgress) -> Delay | None:
    """Why a committed transaction is not delivered, None if it is, or if none of its messages counts."""
    if row.topic_id != progress.topic_id:
        return Delay.DELETED_TOPIC
    ends = {(row.partition, row.first_offset), (row.partition, row.last_offset)}
    if row.transaction_id in progress.discarded or not ends.isdisjoint(progress.malformed):
        return Delay.DISCARDED
    partition = progress.partitions.get(row.partition)
    return _why_unsettled(row, partition) if row.last_offset >= 0 else None


def _why_unsettled(row: CommittedRow, partition: HalfPartition | None) -> Delay | None:
    """Return why a transaction is not settled, by its first and last half; None if it is."""
    if partition is None or partition.checkpoint is None:
        return Delay.UNKNOWN
    if all(_is_settled(offset, partition.checkpoint) for offset in (row.first_offset, row.last_offset)):
        return None
    if row.first_offset < partition.start or row.last_offset >= partition.end:
        return Delay.GONE
    return Delay.UNREAD if row.last_offset >= partition.checkpoint.head else Delay.PENDING


def _is_settled(offset: int, checkpoint: HalfCheckpoint) -> bool:
    """Whether a checkpoint calls a half settled; its unsettled runs ascend."""
    before = bisect_right(checkpoint.unsettled, offset, key=lambda run: run.start)
    return offset < checkpoint.head and not (before and offset in checkpoint.unsettled[before - 1])


def first_id_of(unix_ms: int) -> str:
    """Return the smallest id of a moment, ms since 1970: ids begin with their time."""
    return make_transaction_id(max(unix_ms, 0), _LOWEST)


def between(ordered: Sequence[str], after: str, to: str) -> Sequence[str]:
    """Return those of some sorted ids that are after one id and not after another."""
    return ordered[bisect_right(ordered, after) : bisect_right(ordered, to)]


def places(malformed: Collection[tuple[int, int]]) -> Mapping[str, Sequence[int]]:
    """Return discarded halves without a known transaction id as parameters of a statement."""
    ordered = sorted(malformed)
    return {
        "malformed_partitions": [partition for partition, _ in ordered],
        "malformed_offsets": [offset for _, offset in ordered],
    }
