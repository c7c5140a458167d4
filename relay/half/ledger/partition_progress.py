"""How far a half partition, its op and its verdict partition are read and settled: the checkpoints' content. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from relay.half.state.message_transaction import Transaction
from relay.half.state.unsettled import Unsettled


class Checkpoints(NamedTuple):
    """The checkpoints of one partition number."""

    half: HalfCheckpoint
    op: OpCheckpoint
    verdict: OpCheckpoint


class OpProgress:
    """The position in an op or verdict partition."""

    def __init__(self, checkpoint: OpCheckpoint) -> None:
        self.next = checkpoint.offset
        self._restored_head = checkpoint.head

    def checkpoint(self, needed: Iterable[int | None]) -> OpCheckpoint:
        """Return the oldest op that must be read again, and the head.

        Args:
            needed: Offsets of ops whose half is ahead, or whose effect is not committed; None: none.
        """
        oldest = min((offset for offset in needed if offset is not None), default=self.next)
        return OpCheckpoint(oldest, max(self.next, self._restored_head))


class Progress:
    """Positions in the partitions of one number, and the unsettled halves below them."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        half = checkpoints.half
        self.unsettled = Unsettled(half.unsettled, half.head)
        self.next_half = half.offset  # below `restored_head` until all halves that the checkpoint names are read
        self.restored_head = half.head
        self.ops = OpProgress(checkpoints.op)
        self.verdicts = OpProgress(checkpoints.verdict)

    def head(self) -> int:
        """Return the offset of the half that is read next."""
        return max(self.next_half, self.restored_head)

    def read_half(self, offset: int) -> bool:
        """Move past a half; return whether it is unsettled."""
        self.next_half = offset + 1
        if offset < self.restored_head:
            return offset in self.unsettled
        self.unsettled.read(offset)
        return True

    def read_op(self, offset: int, *, verdict: bool) -> bool:
        """Move past a record of the op or verdict partition; return whether it was not read before."""
        position = self.verdicts if verdict else self.ops
        if offset < position.next:
            return False
        position.next = offset + 1
        return True

    def restored(self) -> None:
        """Go on at the head of the checkpoint: all halves that it names unsettled are read."""
        self.next_half = self.head()

    def can_settle(self, transaction: Transaction) -> bool:
        """Return whether the checkpoint string can encode that a transaction is settled, among all that is not."""
        if self.unsettled.is_narrow():
            return True
        offsets = sorted([half.offset for half in transaction.all_halves()])
        if transaction.discarded:
            return not any(offset in self.unsettled for offset in offsets)
        return self.unsettled.fits(offsets, transaction.gaps)

    def read_limit(self, next_half: int, most: int) -> int:
        """Return the offset from which on halves may not be read yet: a checkpoint could not name them all.

        Args:
            next_half: Offset of the half that would be read next.
            most: How many more halves may pend.
        """
        return max(min(self.unsettled.limit(next_half), next_half + most), self.restored_head)

    def half_checkpoint(self) -> HalfCheckpoint:
        """Return the lowest unsettled half, the head, and what is unsettled between (R19)."""
        head, unsettled = self.head(), self.unsettled.runs()
        return HalfCheckpoint(unsettled[0].start if unsettled else head, head, unsettled)
