"""Ops whose half is ahead: kept until it is read, or until its offsets were read without it. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from outbox.protocol.op import OpEntry, OpSource


@dataclass(slots=True)
class EarlyOp:
    """A decision that came before its half."""

    offset: Final[int]
    source: Final[OpSource]
    entry: Final[OpEntry]
    append_time: Final[int]
    is_verdict: Final[bool] = False


class EarlyOps:
    """The early ops of one partition."""

    def __init__(self) -> None:
        self._serial = count()
        self._ops: dict[int, EarlyOp] = {}
        self._offsets: tuple[dict[int, int], dict[int, int]] = ({}, {})  # in the op, and in the verdict partition
        self._of: defaultdict[str, list[int]] = defaultdict(list)
        self._until: list[tuple[int, int]] = []  # heap: last offset of the halves, and whose
        self.size = 0
        """How many are kept; one with many runs of positions counts once for each run, as it takes so much memory."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._ops)

    def keep(self, op: EarlyOp) -> None:
        """Keep an op, in the order of its partition."""
        serial = next(self._serial)
        self._ops[serial] = op
        self._offsets[op.is_verdict][serial] = op.offset
        self.size += _size(op)
        self._of[op.entry.transaction_id].append(serial)
        heapq.heappush(self._until, (op.entry.last_offset, serial))

    def pop(self, transaction_id: str) -> Sequence[EarlyOp]:
        """Take the ops of a transaction, in their order."""
        serials = self._of.pop(transaction_id, None)
        return () if serials is None else [self._take(serial) for serial in serials]

    def drop_below(self, head: int) -> Iterator[EarlyOp]:
        """Take the ops whose last half is below the head, and was not met."""
        while self._until and self._until[0][0] < head:
            serial = heapq.heappop(self._until)[1]
            if serial in self._ops:
                op = self._take(serial)
                self._forget(op.entry.transaction_id, serial)
                yield op

    def _take(self, serial: int) -> EarlyOp:
        op = self._ops.pop(serial)
        del self._offsets[op.is_verdict][serial]
        self.size -= _size(op)
        return op

    def _forget(self, transaction_id: str, serial: int) -> None:
        serials = self._of[transaction_id]
        serials.remove(serial)
        if not serials:
            del self._of[transaction_id]

    def oldest(self, *, verdict: bool = False) -> int | None:
        """Offset of the oldest record with an op that is kept; None if there is none."""
        return next(iter(self._offsets[verdict].values()), None)


def _size(op: EarlyOp) -> int:
    return max(len(op.entry.positions.runs), 1)
