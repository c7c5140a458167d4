"""The first checkpoint of a half partition that was written to before it had one (R84). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from outbox.protocol.checkpoint import HalfCheckpoint, runs_of


class StoredHalf(NamedTuple):
    """A half as the half partition has it.

    Args:
        transaction_id: Its transaction; empty: the half is malformed, and a relay discards it.
    """

    offset: int
    transaction_id: str


def first_checkpoint(halves: Iterable[StoredHalf], delivered: Collection[str]) -> HalfCheckpoint:
    """Return the checkpoint of a half partition from its beginning.

    A transaction is delivered whole, so that each of its halves is settled. All others are owed: a relay gets their
    decisions, and delivers them, rolls them back or discards them.

    Args:
        halves: All that the half partition has, in the order of their offsets.
    """
    owed: list[int] = []
    kept, head = 0, 0
    for half in halves:
        if half.transaction_id in delivered:
            kept, head = len(owed), half.offset + 1
        else:
            owed.append(half.offset)
    unsettled = runs_of(owed[:kept])
    return HalfCheckpoint(unsettled[0].start if unsettled else head, head, unsettled)
