"""How far a half partition and its op partition are read and settled: the content of the two checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from relay.state.message_transaction import Transaction
from relay.state.unsettled import Unsettled


class Progress:
    """Positions in both partitions, and the unsettled halves below them.

    Args:
        half: Checkpoint of the half partition.
        op: Checkpoint of the op partition.
    """

    def __init__(self, half: HalfCheckpoint, op: OpCheckpoint) -> None:
        self.unsettled = Unsettled(half.unsettled, half.head)
        self.next_half = half.offset  # below `restored_head` until all halves that the checkpoint names are read
        self.next_op = op.offset
        self.restored_head = half.head
        self._restored_op_head = op.head

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

    def op_checkpoint(self, needed: Iterable[int | None]) -> OpCheckpoint:
        """Return the oldest op that must be read again, and the head.

        Args:
            needed: Offsets of ops whose half is ahead, or whose effect is not committed; None: none.
        """
        oldest = min((offset for offset in needed if offset is not None), default=self.next_op)
        return OpCheckpoint(oldest, max(self.next_op, self._restored_op_head))
