"""Op entries of one half partition, and what each changes: a transaction, an op kept for later, or nothing. Pure."""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.half.state.check_schedule import Overdue
from relay.half.state.discard_index import Discards, from_manifest, is_resumed_by
from relay.half.state.half_records import OpRecord
from relay.half.state.message_transaction import Event, Transaction
from relay.half.state.parking import Deferred, Parking

EARLY_OPS = 100_000
"""Ops kept for halves that are ahead."""

EARLY_OPS_OF_DEFERRED = 0.5
"""The part of these that may be for deferred halves: those for halves ahead must never wait for them."""

EARLY_OPS_OF_PLAIN = 20_000
"""Kept beyond these for halves that were read and wait for a moment, see `relay.half.ledger.plain_halves`."""

_DECISIONS = frozenset({OpKind.COMMIT, OpKind.ROLLBACK})
_WERE_ASKED = frozenset({OpSource.CHECKER, OpSource.LISTENER})
_UNKNOWN, _CONTRADICTION = Event.UNKNOWN, Event.CONTRADICTION
_COUNTED_AS = {(kind, source): f"{kind.name.lower()}_{source}" for kind in OpKind for source in OpSource}

READ_AGAIN = 10_000
"""Op records before the newest that a take-over reads again for what is decided and waits; for older ones check-back
answers: a real topic may be missing for days."""

GENERATION = 5_000
"""Transactions of one kind after which the generation before is forgotten: 5,000 to 10,000 are remembered."""

MOST = 100
"""Contradictions that wait to be logged; more are only counted."""

_OPPOSITES = {OpKind.COMMIT: OpKind.ROLLBACK, OpKind.ROLLBACK: OpKind.COMMIT}


class Contradiction(NamedTuple):
    """An op entry that contradicts a decision that was obeyed."""

    transaction_id: str
    obeyed: OpKind
    later: OpKind
    source: OpSource


class Obeyed:
    """The transactions that were settled last, by decision: what contradicts it later must not stay unnoticed (R42).

    Rollbacks and commits are remembered apart: rollbacks are few, so they are remembered for longer.
    """

    def __init__(self) -> None:
        self._settled: dict[OpKind, tuple[set[str], set[str]]] = {kind: (set(), set()) for kind in _OPPOSITES}

    def note(self, kind: OpKind, *transaction_ids: str) -> None:
        """Note that transactions were settled by a decision, COMMIT or ROLLBACK."""
        new, _ = self._settled[kind]
        new.update(transaction_ids)
        if len(new) >= GENERATION:
            self._settled[kind] = (set(), new)

    def contradiction(self, source: OpSource, entry: OpEntry) -> Contradiction | None:
        """Return what contradicts the decision that was obeyed; None: nothing, or the decision is not remembered."""
        obeyed = _OPPOSITES.get(entry.kind)
        id_ = entry.transaction_id
        if obeyed is None or self._knows(id_, entry.kind) or not self._knows(id_, obeyed):
            return None
        return Contradiction(id_, obeyed, entry.kind, source)

    def _knows(self, transaction_id: str, kind: OpKind) -> bool:
        return any(transaction_id in generation for generation in self._settled[kind])


EACH_MS = 60_000
"""Time from one report to the next, ms."""


class Report(NamedTuple):
    """Which records were dropped since the last report because their source does not write to their topic."""

    records: int
    newest: OpRecord


class Dropped:
    """The dropped op records of one partition number."""

    def __init__(self) -> None:
        self._misplaced = 0
        self._newest: OpRecord | None = None
        self._due = 0

    def note(self, record: OpRecord) -> str:
        """Note a record that decides nothing; return the kind under which it is counted."""
        if not record.is_misplaced:
            return "op_malformed"
        self._misplaced += 1
        self._newest = record
        return "op_misplaced"

    def take(self, now: int) -> Report | None:
        """Return what was misplaced since the last report; None if it was nothing, or the last report is too recent."""
        if self._newest is None or now < self._due:
            return None
        report = Report(self._misplaced, self._newest)
        self._misplaced, self._newest, self._due = 0, None, now + EACH_MS
        return report


class EarlyOp(NamedTuple):
    """A decision that came before its half."""

    offset: int
    source: OpSource
    entry: OpEntry
    append_time: int
    is_verdict: bool = False

    def size(self) -> int:
        """Return for how many ops it counts: one with many runs of positions takes so much memory."""
        return max(len(self.entry.positions.runs), 1)


class EarlyOps:
    """Ops whose half is ahead: kept until it is read, or until its offsets were read without it."""

    def __init__(self) -> None:
        self._of: dict[str, list[EarlyOp]] = {}
        self._kept: tuple[dict[int, EarlyOp], dict[int, EarlyOp]] = ({}, {})
        """Those of the op, and of the verdict partition, in their order, by `id()`."""
        self._until: list[tuple[int, int, EarlyOp]] = []  # heap: last offset of the halves, a serial number
        self._serial = count()
        self.size = 0
        """How many are kept, see `EarlyOp.size`."""

    def keep(self, op: EarlyOp) -> None:
        """Keep an op, in the order of its partition."""
        self._of.setdefault(op.entry.transaction_id, []).append(op)
        self._kept[op.is_verdict][id(op)] = op
        self.size += op.size()
        heapq.heappush(self._until, (op.entry.last_offset, next(self._serial), op))

    def of(self, transaction_id: str) -> Sequence[EarlyOp]:
        """Return the ops of a transaction, in their order."""
        return self._of.get(transaction_id, ())

    def pop(self, transaction_id: str) -> Sequence[EarlyOp]:
        """Take the ops of a transaction, in their order."""
        ops = self._of.pop(transaction_id, ())
        for op in ops:
            self._forget(op)
        return ops

    def drop_below(self, head: int) -> Iterator[EarlyOp]:
        """Take the ops whose last half is below the head, and was not met."""
        while self._until and self._until[0][0] < head:
            op = heapq.heappop(self._until)[2]
            if id(op) in self._kept[op.is_verdict]:
                self._forget(op)
                left = [other for other in self._of.pop(op.entry.transaction_id) if other is not op]
                if left:
                    self._of[op.entry.transaction_id] = left
                yield op

    def _forget(self, op: EarlyOp) -> None:
        del self._kept[op.is_verdict][id(op)]
        self.size -= op.size()

    def oldest(self, *, verdict: bool = False) -> int | None:
        """Offset of the oldest record with an op that is kept; None if there is none."""
        return next((op.offset for op in self._kept[verdict].values()), None)


class Waiting:
    """The op records that decided what is not settled yet: a take-over reads them again (R85)."""

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def add(self, transaction_id: str, offset: int) -> None:
        """Note what decided a transaction."""
        if transaction_id not in self._offsets:
            self._offsets[transaction_id] = offset
            heapq.heappush(self._heap, (offset, transaction_id))

    def remove(self, transaction_id: str) -> None:
        """Note that a transaction is settled, or is not decided any more."""
        self._offsets.pop(transaction_id, None)

    def oldest(self, above: int) -> int | None:
        """Return the lowest offset that is not below another one; None if there is none."""
        while self._heap:
            offset, transaction_id = self._heap[0]
            if offset >= above and self._offsets.get(transaction_id) == offset:
                return offset
            heapq.heappop(self._heap)
            if self._offsets.get(transaction_id) == offset:
                del self._offsets[transaction_id]
        return None


class Decisions:
    """Applies op entries."""

    def __init__(
        self,
        place: tuple[str, int],
        counts: Counter[str],
        plain_ids: AbstractSet[str],
        discards: Discards,
        deferred: Deferred,
        parking: Parking,
        overdue: Overdue,
    ) -> None:
        self._place = place
        self._counts = counts
        self._plain_ids = plain_ids
        self._discards = discards
        self._deferred = deferred
        self._parking = parking
        self._overdue = overdue
        self._early = EarlyOps()
        self._waiting = Waiting(), Waiting()  # of the op, and of the verdict partition
        self._obeyed = Obeyed()
        self._contradictions: list[Contradiction] = []

    def read(self, op: EarlyOp, transaction: Transaction | None, head: int) -> bool:
        """Apply an op entry; return whether its transaction may be settled or handed out now."""
        entry = op.entry
        if (entry.topic_id, entry.partition) != self._place:
            self._counts["op_foreign"] += 1
            return False
        if transaction is None:
            self._without_transaction(op, head)
            return False
        self._apply(transaction, op)
        if transaction.discarded:
            self._pin(transaction, op)
        return True

    def apply_early(self, transaction: Transaction) -> bool:
        """Apply the entries that were read before the transaction's half; return whether there were any."""
        early = self._early.pop(transaction.id)
        for op in early:
            self._apply(transaction, op)
        return bool(early)

    def drop_lost(self, below: int, restored_head: int) -> None:
        """Drop early ops whose offsets were read without their half; a lost COMMIT is an alarm.

        An op for a half below the restored head is a replay: the half may have been settled before.
        """
        for op in self._early.drop_below(below):
            replay = op.entry.first_offset < restored_head
            lost = op.entry.kind is OpKind.COMMIT and not replay
            self._counts["op_lost" if lost else "op_settled"] += 1

    def is_full(self) -> bool:
        """Return whether no more ops for halves ahead can be kept."""
        return self._early.size >= EARLY_OPS

    def needed(self, head: int, *, verdict: bool = False) -> tuple[int | None, int | None]:
        """Return the oldest op that is kept for a half ahead, and the oldest one on what is decided and waits.

        Args:
            head: Offset of the op that is read next.
        """
        return self._early.oldest(verdict=verdict), self._waiting[verdict].oldest(head - READ_AGAIN)

    def settled(self, transaction: Transaction) -> None:
        """Remember the decision of a transaction that is settled, to find later ones that contradict it (R42)."""
        self._forget(transaction)
        if transaction.decision is not None:
            self._obeyed.note(transaction.decision.kind, transaction.id)

    # --- plain halves, see `relay.half.ledger.plain_halves`

    def early(self, transaction_id: str) -> Sequence[EarlyOp]:
        """Return the entries that were read before the transaction's half came to the ledger."""
        return self._early.of(transaction_id)

    def committed(self, transaction_ids: Sequence[str]) -> None:
        """Forget the entries that committed plain halves, but for what they decided (R42)."""
        for id_ in transaction_ids:
            self._early.pop(id_)
        self._obeyed.note(OpKind.COMMIT, *transaction_ids)
        self._counts[_COUNTED_AS[OpKind.COMMIT, OpSource.PRODUCER]] += len(transaction_ids)

    def take_contradictions(self) -> list[Contradiction]:
        """Return op entries that contradict decisions that were obeyed, each once."""
        taken, self._contradictions = self._contradictions, []
        return taken

    # --- entries without a pending transaction

    def _without_transaction(self, op: EarlyOp, head: int) -> None:
        entry = op.entry
        if self._discards.holds(entry.transaction_id):
            self._on_refused(op)
        elif entry.transaction_id in self._plain_ids:
            self._keep(op, EARLY_OPS + EARLY_OPS_OF_PLAIN)
        elif self._deferred and (entry.first_offset in self._deferred or entry.last_offset in self._deferred):
            self._keep(op, EARLY_OPS * EARLY_OPS_OF_DEFERRED)  # until its half is read again
        elif entry.last_offset < head:
            self._on_settled(op)
        else:
            self._keep(op, EARLY_OPS)

    def _keep(self, op: EarlyOp, most: float) -> None:
        """Keep a decision until its half is read; without room for it check-back answers."""
        if op.entry.kind not in _DECISIONS or self._early.size >= most:
            self._counts["op_passed"] += 1
        else:
            self._early.keep(op)

    def _on_settled(self, op: EarlyOp) -> None:
        """Count an op that comes too late; one that contradicts the decision that was obeyed is an alarm (R42)."""
        self._counts["op_settled"] += 1
        found = self._obeyed.contradiction(op.source, op.entry)
        if found is not None:
            self._counts["op_contradicts_settled"] += 1
            self._contradictions = [*self._contradictions, found][:MOST]

    def _on_refused(self, op: EarlyOp) -> None:
        """Obey an operator who repeats pre-flight, or a decision that removes the transaction."""
        entry = op.entry
        manifest = self._discards.refused(entry.transaction_id)
        transaction = from_manifest(manifest)
        event = transaction.event(entry, op.source) if is_resumed_by(manifest, entry) else None
        if event is None or self._discards.resumes(transaction.id):
            self._counts["op_dropped"] += 1
            return
        transaction.move(event)
        self._discards.pin(transaction.id, op.offset, verdict=op.is_verdict)
        if event is Event.DELIVER:
            transaction.decide(replace(entry, kind=OpKind.COMMIT), op.source, op.append_time)
            self._discards.resume(transaction)
        else:
            self._discards.remove(transaction)
            self._obeyed.note(entry.kind, transaction.id)
        self._counts[_COUNTED_AS[entry.kind, op.source]] += 1

    # --- entries on a pending or parked transaction

    def _pin(self, transaction: Transaction, op: EarlyOp) -> None:
        """Keep a decision on a discarded transaction to be read again until its effect is committed."""
        if transaction.decision is None:
            self._discards.unpin(transaction.id)
        else:
            self._discards.pin(transaction.id, op.offset, verdict=op.is_verdict)

    def _apply(self, transaction: Transaction, op: EarlyOp) -> None:
        entry, source = op.entry, op.source
        event = transaction.event(entry, source)
        if event is None:
            self._counts["op_dropped"] += 1
            return
        transaction.move(event)
        if event is _UNKNOWN:
            self._counts[_COUNTED_AS[entry.kind, source]] += 1
            self._count_unknown(transaction, entry)
        elif event is _CONTRADICTION:
            self._counts["contradiction"] += 1
            transaction.dispute()
            self._forget(transaction)
            self._overdue.ask_now([transaction])
        else:
            self._counts[_COUNTED_AS[entry.kind, source]] += 1
            transaction.decide(entry, source, op.append_time)
            if not transaction.discarded:  # what is in the discard topic has pins of its own
                self._waiting[op.is_verdict].add(transaction.id, op.offset)
            if source in _WERE_ASKED:
                self._parking.decided(transaction, self._overdue.ops_known_until())

    def _forget(self, transaction: Transaction) -> None:
        for waiting in self._waiting:
            waiting.remove(transaction.id)

    def _count_unknown(self, transaction: Transaction, entry: OpEntry) -> None:
        """Count an UNKNOWN answer once: it carries the number of its check."""
        if entry.checks > transaction.unknown_answers:
            transaction.unknown_answers = entry.checks
            transaction.last_answer = entry.reason
            self._parking.answered_unknown(transaction)
