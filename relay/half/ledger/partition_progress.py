"""How far a half partition, its op and its verdict partition are read and settled: the checkpoints' content. Pure."""

import heapq
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from outbox.protocol.checkpoint import FAR, FEW, WINDOW, HalfCheckpoint, OpCheckpoint
from relay.half.state.message_transaction import Transaction


class Unsettled:
    """Ascending runs of offsets that are not settled, below the offset to be read next."""

    def __init__(self, runs: Collection[range], head: int) -> None:
        self._starts = [run.start for run in runs]
        self._stops = [run.stop for run in runs]
        self._head = head
        self._reserved = 0
        self._late: list[int] = []  # heap: settled, but still named

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._stops[index]

    def runs(self) -> tuple[range, ...]:
        return tuple(map(range, self._starts, self._stops))

    def lowest(self, otherwise: int) -> int:
        """Return the lowest; another one if there is none."""
        return self._starts[0] if self._starts else otherwise

    def islands(self) -> int:
        """How many runs there are, with the one that the next offset to be read begins, and those reserved."""
        return len(self._starts) + (not self._stops or self._stops[-1] != self._head) + self._reserved

    def reserve(self, more: int) -> None:
        """Keep room for so many runs more: a transaction that is scattered leaves so many holes, whole as it goes.

        So the one with the lowest offset can always be settled.
        """
        self._reserved += more

    def is_narrow(self) -> bool:
        """Whether a bitmap can encode anything, and so whatever is settled next."""
        return not self._starts or self._head - self._starts[0] <= WINDOW

    def read(self, offset: int) -> None:
        """Add an unsettled offset at the head or above it."""
        self._head = offset + 1
        if self._stops and self._stops[-1] == offset:
            self._stops[-1] = offset + 1
        else:
            self._starts.append(offset)
            self._stops.append(offset + 1)

    def limit(self, next_half: int) -> int:
        """Offsets from here on may not be read yet.

        The head stays within a window above the lowest unsettled half, so that one undecided transaction does not hold
        up a busy partition: a narrow one that a bitmap can encode, or a wide one as long as there are few runs.
        """
        lowest = self.lowest(next_half)
        return max(lowest + WINDOW, min(next_half + FEW - self.islands(), lowest + FAR))

    def fits(self, offsets: Sequence[int], reserved: int = 0) -> bool:
        """Whether the string could still name all if these ascending offsets were settled now.

        Each of them makes one run more at most; only if there is no room for so many it is looked at closely.
        """
        room = FEW - self.islands() + reserved
        return len(offsets) <= room or self.is_narrow() or sum(map(self._more, _groups(offsets))) <= room

    def settle(self, offsets: Iterable[int]) -> None:
        """Settle offsets in the next checkpoint: what was delivered must not be delivered again."""
        for run in _groups(offsets):
            self._remove(run)
        self._name_late_ones_no_more()

    def settle_late(self, offsets: Iterable[int]) -> None:
        """Offsets are settled without a delivery: they may be named a while longer if the string is full.

        After a restart they would be looked up again, to the same end.
        """
        if not self._late and self.is_narrow():
            self.settle(offsets)
            return
        for offset in offsets:
            heapq.heappush(self._late, offset)
        self._name_late_ones_no_more()

    def _name_late_ones_no_more(self) -> None:
        """As far as there is room, from below: the lowest offset that is named always fits, so that it moves on."""
        while self._late and self.fits((self._late[0],)):
            self._remove(range(offset := heapq.heappop(self._late), offset + 1))

    def _more(self, group: range) -> int:
        """How many more runs there would be without a group of adjacent offsets."""
        index = bisect_right(self._starts, group.start) - 1
        stop = self._stops[index]
        return (self._starts[index] < group.start) + (group.stop < stop or stop == self._head) - 1

    def _remove(self, run: range) -> None:
        starts, stops = self._starts, self._stops
        if starts and starts[0] == run.start and run.stop < stops[0]:  # as nearly always
            starts[0] = run.stop
            return
        index = bisect_right(starts, run.start) - 1
        if index < 0 or run.stop > stops[index]:
            raise KeyError(run)
        around = range(starts[index], run.start), range(run.stop, stops[index])
        starts[index : index + 1] = [rest.start for rest in around if rest]
        stops[index : index + 1] = [rest.stop for rest in around if rest]


def _groups(offsets: Iterable[int]) -> Iterator[range]:
    """Ascending offsets as runs of adjacent ones."""
    start = stop = -1
    for offset in offsets:
        if offset != stop:
            if stop > start:
                yield range(start, stop)
            start = offset
        stop = offset + 1
    if stop > start:
        yield range(start, stop)


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
        """Return the oldest of the ops that are still needed and must be read again, and the head."""
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
        """Return the offset from which on halves may not be read yet: a checkpoint could not name them all."""
        return max(min(self.unsettled.limit(next_half), next_half + most), self.restored_head)

    def half_checkpoint(self) -> HalfCheckpoint:
        """Return the lowest unsettled half, the head, and what is unsettled between (R19)."""
        head, unsettled = self.head(), self.unsettled.runs()
        return HalfCheckpoint(unsettled[0].start if unsettled else head, head, unsettled)
