"""What is unsettled in a channel, gathered from halves, op entries, check requests and manifests. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions

_DECISIONS = frozenset({OpKind.COMMIT, OpKind.ROLLBACK})


class Half(NamedTuple):
    """A half as it was read; nothing of its content.

    Args:
        partition: Half partition.
        offset: Its offset there.
        append_time: The broker's time of its append, ms since 1970.
        control: Its control headers.
    """

    partition: int
    offset: int
    append_time: int
    control: HalfControl


class Said(NamedTuple):
    """A decision that an op entry says.

    Args:
        kind: COMMIT or ROLLBACK.
        source: Who wrote it.
        offset: Of the op record.
        append_time: The broker's time of its append, ms since 1970.
    """

    kind: OpKind
    source: OpSource
    offset: int
    append_time: int


@dataclass(slots=True)
class Unsettled:
    """A transaction that is not settled: undecided, or decided and not delivered yet.

    Args:
        id: Transaction id.
        group: Producer group.
        truth: Who knows whether it committed.
        partition: Half partition.
        first_append_time: Append time of its first half, ms since 1970 by the broker's clock.
        incarnation: Database incarnation that its halves name, if any.
        offsets: Half offset by position; of several halves of a position the first.
        targets: Real topics.
        parked: Whether it lies in the discard topic, undecided.
        said: What op entries say of it, in their order.
        checks: The highest number that a check request of it had, or UNKNOWN answers of a parked one; 0: none is known.
        last_asked: Append time of the last check request that was seen, ms since 1970; 0: none was.
    """

    id: str
    group: str
    truth: Truth
    partition: int
    first_append_time: int
    incarnation: str | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    targets: set[str] = field(default_factory=set)
    parked: bool = False
    said: list[Said] = field(default_factory=list)
    checks: int = 0
    last_asked: int = 0

    @property
    def first_offset(self) -> int:
        """Offset of the first half."""
        return min(self.offsets.values())

    @property
    def last_offset(self) -> int:
        """Offset of the last half."""
        return max(self.offsets.values())

    @property
    def positions(self) -> Positions:
        """Positions of the halves that were found."""
        return Positions.of(self.offsets)

    @property
    def decision(self) -> Said | None:
        """The last decision that was said; None: nobody has said any."""
        return self.said[-1] if self.said else None

    @property
    def disputed(self) -> bool:
        """Whether decisions contradict each other."""
        return len({said.kind for said in self.said}) > 1

    def request(self, topic_id: str) -> CheckRequest:
        """The question that a relay would ask about it."""
        return CheckRequest(
            self.id,
            self.group,
            self.truth,
            topic_id,
            self.partition,
            self.positions,
            self.first_offset,
            self.last_offset,
            self.checks + 1,
            self.incarnation,
        )


class Gathering:
    """Transactions of some partitions, up to so many halves of each; the oldest are read first.

    Args:
        most: Halves of one partition that are taken.
        only: Id of the one transaction that is of interest; None: all are.

    Attributes:
        found: What is unsettled, by transaction id.
        refused: What lies in the discard topic because it cannot be delivered, by transaction id.
        malformed: How many halves cannot be parsed.
    """

    def __init__(self, most: int, only: str | None = None) -> None:
        self._most = most
        self._only = only
        self._taken: dict[int, int] = {}
        self.malformed = 0
        self.found: dict[str, Unsettled] = {}
        self.refused: dict[str, DiscardReason] = {}

    def is_full(self, partition: int) -> bool:
        """Whether no more halves of a partition are taken: those after them must be told as not read."""
        return self._taken.get(partition, 0) >= self._most

    def add_half(self, half: Half) -> None:
        """Take a half that is not settled."""
        control = half.control
        if self._only not in {None, control.transaction_id}:
            return
        self._taken[half.partition] = self._taken.get(half.partition, 0) + 1
        transaction = self.found.setdefault(
            control.transaction_id,
            Unsettled(
                control.transaction_id,
                control.group,
                control.truth,
                half.partition,
                half.append_time,
                control.options.incarnation,
            ),
        )
        if transaction.partition == half.partition:  # one in another partition is a copy, and goes with the original
            transaction.offsets.setdefault(control.position, half.offset)
            transaction.targets.add(control.topic)

    def add_manifest(self, manifest: Manifest) -> None:
        """Take what lies in the discard topic, after the halves: a half may still have to follow its transaction."""
        if self._only not in {None, manifest.transaction_id}:
            return
        if manifest.reason is not DiscardReason.UNDECIDED:
            self.refused[manifest.transaction_id] = manifest.reason
            return
        followers = self.found.get(manifest.transaction_id)
        self.found[manifest.transaction_id] = Unsettled(
            manifest.transaction_id,
            manifest.group,
            manifest.truth,
            manifest.partition,
            manifest.first_append_time,
            manifest.incarnation,
            (followers.offsets if followers else {}) | dict(reversed(manifest.offsets)),
            followers.targets if followers else set(),
            parked=True,
            checks=manifest.checks,
        )

    def add_op(self, entry: OpEntry, source: OpSource, offset: int, append_time: int, topic_id: str) -> None:
        """Take what an op entry says, if it is of a transaction that was found, and in its place."""
        transaction = self.found.get(entry.transaction_id)
        if transaction is None or (entry.topic_id, entry.partition) != (topic_id, transaction.partition):
            return
        if entry.kind in _DECISIONS:
            transaction.said.append(Said(entry.kind, source, offset, append_time))
        elif entry.kind is OpKind.UNKNOWN:
            transaction.checks = max(transaction.checks, entry.checks)

    def add_check(self, request: CheckRequest, append_time: int) -> None:
        """Take a check request."""
        transaction = self.found.get(request.transaction_id)
        if transaction is not None:
            transaction.checks = max(transaction.checks, request.check)
            transaction.last_asked = max(transaction.last_asked, append_time)


class Sum(NamedTuple):
    """What is unsettled of a producer group in a half partition.

    Args:
        undecided: Transactions of which nobody has said a decision.
        decided: Transactions that are decided, and not settled yet.
        oldest: Append time of the oldest of both, ms since 1970.
    """

    undecided: int
    decided: int
    oldest: int


def sums(found: Iterable[Unsettled]) -> dict[tuple[str, int], Sum]:
    """The sums by producer group and half partition, in that order."""
    totals: dict[tuple[str, int], Sum] = {}
    for transaction in found:
        place, decided = (transaction.group, transaction.partition), transaction.decision is not None
        before = totals.get(place, Sum(0, 0, transaction.first_append_time))
        oldest = min(before.oldest, transaction.first_append_time)
        totals[place] = Sum(before.undecided + (not decided), before.decided + decided, oldest)
    return dict(sorted(totals.items()))


def chosen(found: Iterable[Unsettled], group: str | None, appended_until: int) -> list[Unsettled]:
    """Those of a group that were appended until a time, the oldest first.

    Args:
        found: What was found.
        group: A producer group; None: all.
        appended_until: ms since 1970.
    """
    kept = (one for one in found if group in {None, one.group} and one.first_append_time <= appended_until)
    return sorted(kept, key=lambda one: (one.first_append_time, one.partition, one.first_offset))
