"""The unsettled transactions of a channel, gathered from halves, op entries and manifests. Pure."""

import heapq
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions

_DECISIONS = frozenset({OpKind.COMMIT, OpKind.ROLLBACK})
ServicePartition = tuple[str, int]  # service and half partition


class Half(NamedTuple):
    """A half as it was read; nothing of its content."""

    partition: int
    offset: int
    append_time: int  # the broker's time of its append, ms since 1970
    control: HalfControl

    @property
    def stamped_ms(self) -> int:  # the lowest timestamp that its message can have
        own = self.control.options.timestamp
        return self.append_time if own is None else min(own, self.append_time)


class RecordedDecision(NamedTuple):
    """Decision that an op entry records."""

    kind: OpKind
    source: OpSource
    offset: int
    append_time: int  # the broker's time of its append, ms since 1970


@dataclass(slots=True)
class UnsettledTransaction:
    """A transaction that is not settled: undecided, or decided and not delivered yet."""

    id: str
    service: str
    truth: Truth
    partition: int
    first_append_time: int  # append time of its first half, ms since 1970 by the broker's clock
    incarnation: str | None = None
    offsets: dict[int, int] = field(default_factory=dict)  # of halves by position; of several of a position the first
    targets: frozenset[str] = frozenset()
    parked: bool = False
    decisions: list[RecordedDecision] = field(default_factory=list)
    checks: int = 0  # how often the answer was UNKNOWN

    def document(self) -> dict[str, Any]:
        decision = self.decision
        return {
            "transaction": self.id,
            "service": self.service,
            "truth": str(self.truth),
            "half_partition": self.partition,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "messages": len(self.offsets),
            "targets": sorted(self.targets),
            "appended_ms": self.first_append_time,
            "parked": self.parked,
            "decision": decision.kind.name if decision else None,
            "decided_by": str(decision.source) if decision else None,
            "decided_ms": decision.append_time if decision else None,
            "disputed": self.disputed,
            "checks": self.checks or None,
        }

    @property
    def first_offset(self) -> int:
        return min(self.offsets.values())

    @property
    def last_offset(self) -> int:
        return max(self.offsets.values())

    @property
    def positions(self) -> Positions:
        return Positions.of(self.offsets)

    @property
    def decision(self) -> RecordedDecision | None:
        return self.decisions[-1] if self.decisions else None

    @property
    def disputed(self) -> bool:
        return len({decision.kind for decision in self.decisions}) > 1

    def request(self, topic_id: str) -> CheckRequest:
        place = (topic_id, self.partition, self.positions, self.first_offset, self.last_offset)
        return CheckRequest(self.id, self.service, self.truth, *place, self.checks + 1, self.incarnation)


class Choice(NamedTuple):
    """Which transactions are of interest."""

    id: str | None = None  # id of the only one; None: any
    service: str | None = None
    appended_until: int = sys.maxsize  # append time of the first half at most, ms since 1970

    def takes(self, id_: str, service: str, append_time: int) -> bool:
        return self.id in {None, id_} and self.service in {None, service} and append_time <= self.appended_until


@dataclass(slots=True)
class ServiceSum:
    """What is unsettled of a service in a half partition: `decided` is not delivered yet."""

    service: str
    half_partition: int
    undecided: int
    decided: int
    oldest_ms: int


@dataclass
class Gathering:
    """Transactions of some partitions, up to so many halves of each; the oldest are read first.

    Of most transactions only the id is kept, to count them. The oldest of each partition are kept in full.
    """

    most: int  # halves of one partition that are taken
    choice: Choice = field(default_factory=Choice)
    keep: int = sys.maxsize  # transactions that are kept in full, of each partition and of what is parked
    malformed: int = 0
    targets: set[str] = field(default_factory=set)  # real topics of all halves that were taken
    found: dict[str, UnsettledTransaction] = field(default_factory=dict)  # what is kept in full
    sums: dict[ServicePartition, ServiceSum] = field(default_factory=dict)
    refused: DiscardReason | None = None  # why the only transaction of interest was discarded
    discarded: Counter[str] = field(default_factory=Counter)  # transactions by reason
    _shared: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)
    _taken: Counter[int] = field(default_factory=Counter)
    _kept: Counter[int] = field(default_factory=Counter)
    _parked: list[tuple[int, str]] = field(default_factory=list)  # heap, the youngest first
    _others: dict[str, ServicePartition] = field(default_factory=dict)  # undecided, and not kept in full

    def is_full(self, partition: int) -> bool:
        return self._taken[partition] >= self.most

    def add_half(self, half: Half) -> None:
        control, id_ = half.control, half.control.transaction_id
        if id_ not in self.found and id_ not in self._others:
            if not self.choice.takes(id_, control.service, half.append_time):
                return
            self._open(half)
        self._taken[half.partition] += 1
        self.targets.add(control.topic)
        transaction = self.found.get(id_)
        if transaction and transaction.partition == half.partition:  # a copy in another one goes with the original
            transaction.offsets.setdefault(control.position, half.offset)
            both = transaction.targets | {control.topic}
            transaction.targets = self._shared.setdefault(both, both)

    def _open(self, half: Half) -> None:
        control, id_ = half.control, half.control.transaction_id
        place = self._count(control.service, half.partition, half.append_time)
        if self._kept[half.partition] >= self.keep:
            self._others[id_] = place
            return
        self._kept[half.partition] += 1
        of = (place[0], control.truth, half.partition, half.append_time, control.options.incarnation)
        self.found[id_] = UnsettledTransaction(id_, *of)

    def _count(self, service: str, partition: int, append_time: int) -> ServicePartition:
        place = sys.intern(service), partition
        sum_ = self.sums.get(place) or self.sums.setdefault(place, ServiceSum(*place, 0, 0, append_time))
        sum_.undecided += 1
        sum_.oldest_ms = min(sum_.oldest_ms, append_time)
        return place

    def add_manifest(self, manifest: Manifest) -> None:
        """Add the content of the discard topic, after the halves: a half may still have to follow its transaction."""
        id_ = manifest.transaction_id
        is_known = id_ in self.found or id_ in self._others
        if not is_known and not self.choice.takes(id_, manifest.service, manifest.first_append_time):
            return
        if manifest.reason is not DiscardReason.UNDECIDED:
            self.refused = manifest.reason if self.choice.id else None
            self.discarded[manifest.reason] += 1
            return
        if not is_known:
            self._count(manifest.service, manifest.partition, manifest.first_append_time)
        if not is_known or id_ in self.found:
            self._park(manifest)

    def _park(self, manifest: Manifest) -> None:
        id_, first, halves = manifest.transaction_id, manifest.first_append_time, dict(reversed(manifest.offsets))
        parked = UnsettledTransaction(
            id_, manifest.service, manifest.truth, manifest.partition, first, manifest.incarnation, halves, parked=True
        )
        parked.checks = manifest.checks
        if followers := self.found.get(id_):
            parked.offsets, parked.targets = followers.offsets | halves, followers.targets
        self.found[id_] = parked
        heapq.heappush(self._parked, (-first, id_))
        if len(self._parked) > self.keep:
            youngest = self.found.pop(heapq.heappop(self._parked)[1])
            self._others[youngest.id] = (sys.intern(youngest.service), youngest.partition)

    def add_op(self, entry: OpEntry, source: OpSource, offset: int, append_time: int, topic_id: str) -> None:
        """Apply an op entry, if it is of a transaction that was found, and in its topic-partition."""
        transaction = self.found.get(entry.transaction_id)
        place = (transaction.service, transaction.partition) if transaction else self._others.get(entry.transaction_id)
        if place is None or (entry.topic_id, entry.partition) != (topic_id, place[1]):
            return
        if entry.kind in _DECISIONS:
            if transaction is None or transaction.decision is None:
                self.sums[place].undecided -= 1
                self.sums[place].decided += 1
            if transaction is None:
                del self._others[entry.transaction_id]
            else:
                transaction.decisions.append(RecordedDecision(entry.kind, source, offset, append_time))
        elif transaction is not None and entry.kind is OpKind.UNKNOWN:
            transaction.checks = max(transaction.checks, entry.checks)

    def since(self) -> dict[int, int]:
        """Return the append time of the oldest transaction by half partition, ms since 1970."""
        youngest_first = sorted(self.sums.values(), key=lambda one: -one.oldest_ms)
        return {one.half_partition: one.oldest_ms for one in youngest_first}

    def unanswered(self, until_ms: int) -> Counter[str]:
        """Return of how many transactions until a time no listener has answered a check, by service."""
        old = (one for one in self.found.values() if one.first_append_time <= until_ms)
        return Counter(one.service for one in old if one.truth is Truth.LISTENER and not (one.checks or one.decisions))

    def oldest(self) -> list[UnsettledTransaction]:
        """Return what is kept in full, the oldest first; younger than `keep` of them, some may be left out."""
        return sorted(self.found.values(), key=lambda one: (one.first_append_time, one.partition, one.first_offset))
