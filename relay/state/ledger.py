"""The ledger of one half partition: halves and ops in; deliveries, check requests, discards and checkpoints out.

Pure and batch shaped: lists in, lists out, no I/O, no clock. What it hands out for delivery it holds for settled; if
that Kafka transaction fails, the ledger is thrown away and made anew from the committed checkpoint (R18).
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from outbox.protocol.check import CheckRequest
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.state.body_cache import KEEP, Bodies, BodyPolicy
from relay.state.check_schedule import CheckPolicy, Overdue
from relay.state.deferred import Deferred
from relay.state.discard_index import Discards, Move, alive, from_manifest, is_resumed_by, record_keys, to_manifest
from relay.state.early_ops import EarlyOp, EarlyOps
from relay.state.half_records import Half, OpRecord, shared_number
from relay.state.message_transaction import COMMITTED, PENDING, READY, ROLLED_BACK, Event, Finding, Transaction
from relay.state.obeyed import MOST, Contradiction, Obeyed
from relay.state.ordering import Lanes
from relay.state.parking import DEFAULT, GRACE_MS, Parking, ParkingPolicy, Room
from relay.state.unsettled import Unsettled


class Ready(NamedTuple):
    """What is ready to be written, about."""

    messages: int
    bytes: int


EARLY_OPS = 100_000
"""Ops kept for halves that lie ahead."""

EARLY_OPS_OF_DEFERRED = 0.5
"""The part of these that may be for deferred halves: those for halves ahead must never wait for them."""

_DECISIONS = frozenset({OpKind.COMMIT, OpKind.ROLLBACK})
_WERE_ASKED = frozenset({OpSource.CHECKER, OpSource.LISTENER})
_UNKNOWN, _CONTRADICTION, _FREED = Event.UNKNOWN, Event.CONTRADICTION, Event.FREED  # as relay.transaction says
_COUNTED_AS = {(kind, source): f"{kind.name.lower()}_{source}" for kind in OpKind for source in OpSource}


class Ledger:
    """What is known of one half partition and its op partition.

    Args:
        topic_id: Id of the half topic, as a UUID.
        partition: Partition number of both.
        half: Checkpoint of the half partition.
        op: Checkpoint of the op partition.
        policy: When to ask about undecided transactions.
        parking: When to park undecided transactions.
        bodies: When the bodies of pending halves are let go.
        ordered: Whether transactions of one (producer group, ordering key) keep their order.
    """

    def __init__(
        self,
        topic_id: str,
        partition: int,
        half: HalfCheckpoint,
        op: OpCheckpoint,
        policy: CheckPolicy,
        parking: ParkingPolicy = DEFAULT,
        bodies: BodyPolicy = KEEP,
        *,
        ordered: bool = True,
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.counts: Counter[str] = Counter()
        self._ordered = ordered
        self._policy = policy
        self._restored_head = half.head
        self._head = half.offset
        self._op_head = op.offset
        self._restored_op_head = op.head
        self._unsettled = Unsettled(half.unsettled, half.head)
        self._pending: dict[str, Transaction] = {}
        self._lanes = Lanes(self._pending)
        self._ready: deque[tuple[Transaction, int, int]] = deque()  # free, or they were when they came here
        self._ready_messages = self._ready_bytes = 0
        self._unsayable: list[Transaction] = []  # ready, but a checkpoint without them would be too long
        self._waiting: list[tuple[int, int, Transaction]] = []  # heap: the last offset that the decision lists
        self._malformed: deque[Half] = deque()
        self._deferred = Deferred()
        self._lacking: dict[str, list[Transaction]] = {}  # decided; halves up to their last offset are deferred
        self._early = EarlyOps()
        self._obeyed = Obeyed()
        self._contradictions: list[Contradiction] = []
        self._serial = count()
        self._discards = Discards()
        self._overdue = Overdue(policy, self._pending.get, self._discards.parked)
        self._parking = Parking(parking)
        self._bodies = Bodies(bodies)

    # --- in -----------------------------------------------------------------------------------------------------

    def restore_discards(self, manifests: Iterable[Manifest]) -> None:
        """Take what lies in the discard partition, before anything else is read."""
        for manifest in alive(manifests, self.topic_id, self.partition):
            if manifest.reason is DiscardReason.UNDECIDED:
                transaction = from_manifest(manifest)
                self._discards.park(transaction)
                self._overdue.watch(transaction)
            else:
                self._discards.refuse(manifest)

    def read_halves(self, halves: Iterable[Half]) -> None:
        """Take halves in the order of their offsets; those that the checkpoint names settled are passed over."""
        for half in halves:
            offset = half.offset
            if offset < self._head:
                self.counts["half_reread"] += 1
                continue
            self._head = offset + 1
            if offset >= self._restored_head:
                self._unsettled.read(offset)
            elif offset not in self._unsettled:
                continue
            if half.control is None:
                self._malformed.append(half)
            else:
                self._add(half, half.control)
        self._judge_waiting()
        self._drop_lost_ops()

    def deferred_wanted(self, most: int) -> list[int]:
        """Return offsets of deferred halves that are to be read again now, ascending, and all of one producer group.

        Args:
            most: How many at most.
        """
        for group in self._deferred.groups():
            room = most if group in self._lacking else min(self._parking.room_of(group), self._parking.more(), most)
            if room > 0:
                return self._deferred.first(group, room)
            self._parking.exceeds(group)
        return []

    def read_deferred(self, halves: Iterable[Half]) -> None:
        """Take halves that `deferred_wanted` named, in its order; what it named last may be left out."""
        group = None
        for half in halves:
            if half.control is None:
                raise ValueError(f"the half at offset {half.offset} could be parsed before")
            group = half.control.group
            self._deferred.remove_lowest(group)
            self._keep(half, half.control)
        for transaction in self._lacking.pop(group, ()) if group else ():
            if self._find(transaction.id) is transaction:
                self._judge(transaction)
        self._drop_lost_ops()

    def deferred(self) -> int:
        """Return how many halves are deferred."""
        return len(self._deferred)

    def deferred_groups(self) -> list[str]:
        """Return the producer groups of deferred halves."""
        return self._deferred.groups()

    def is_deferred(self, offset: int) -> bool:
        """Return whether the half at an offset is deferred."""
        return offset in self._deferred

    def restored(self) -> None:
        """All halves were read that the checkpoint names unsettled: reading goes on at its head."""
        self._head = max(self._head, self._restored_head)
        self._judge_waiting()
        self._drop_lost_ops()

    def read_ops(self, records: Iterable[OpRecord]) -> None:
        """Take op records in the order of their offsets."""
        for record in records:
            if record.offset < self._op_head:
                self.counts["op_reread"] += 1
                continue
            self._op_head = record.offset + 1
            self._overdue.ops_read_until(record.append_time)
            if record.source is None:
                self.counts["op_malformed"] += 1
                continue
            for entry in record.entries:
                self._op(record.offset, record.source, entry)

    def ops_read_until(self, broker_time: int) -> None:
        """Record that the op partition was read to its end at this broker time, ms."""
        self._overdue.ops_read_until(broker_time)

    # --- out ----------------------------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Return what `take_ready` could hand out, about."""
        return Ready(self._ready_messages, self._ready_bytes)

    def take_ready(
        self, messages: int, size: int = sys.maxsize, admits: Callable[[Transaction], bool] = lambda _: True
    ) -> list[Transaction]:
        """Take committed transactions in their order, about so many messages and bytes; they count as settled.

        One whose listed positions cannot all be found is among them: `Transaction.complete()` is False (INCOMPLETE).
        Of those that lie in the discard topic (`Transaction.discarded`) the bodies must be fetched from there. What
        cannot be delivered must be given to `refuse` before the checkpoint is asked for.

        Args:
            messages: How many.
            size: How many bytes.
            admits: Whether a transaction may go now; one that may not pends, and holds up those behind it, until it is
                given to `put_back`.
        """
        taken = self._discards.take_resumed(messages)
        messages -= sum(len(transaction.halves) for transaction in taken)
        self._look_again()
        while self._ready and messages > 0 and size > 0:
            transaction = self._pop_ready()
            if not self._is_free(transaction):
                continue
            if not self._is_sayable(transaction):  # before it is admitted: that may be said only once
                self._unsayable.append(transaction)
                continue
            if not admits(transaction):
                continue
            transaction.move(_FREED)
            messages -= len(transaction.halves)
            size -= transaction.size
            self._settle(transaction)
            taken.append(transaction)
        return taken

    def put_back(self, transactions: Iterable[Transaction]) -> None:
        """Transactions that were not admitted may be by now; one that is not free any more is passed over."""
        for transaction in transactions:
            self._push_ready(transaction)

    def lacks_room(self) -> bool:
        """Whether pending transactions take room that others need: a group's limit, most of the checkpoint, memory."""
        return self._parking.is_wanted(self._room())

    def crowds(self, transaction: Transaction) -> bool:
        """Whether a pending transaction takes such room: it must not wait for anything but its decision."""
        return self._parking.crowds(transaction, self._room())

    def _is_sayable(self, transaction: Transaction) -> bool:
        """Whether the checkpoint string could say that a transaction is settled, among all that is not."""
        if self._unsettled.is_narrow():
            return True
        offsets = sorted([half.offset for half in transaction.all_halves()])
        if transaction.discarded:
            return not any(offset in self._unsettled for offset in offsets)
        return self._unsettled.fits(offsets, transaction.gaps)

    def _look_again(self) -> None:
        """Try again what the checkpoint could not encode, lowest first: runs shrink from their edges."""
        for transaction in sorted(self._unsayable, key=lambda found: found.by_offset()[0][1].offset):
            self._push_ready(transaction)
        self._unsayable.clear()

    def refuse(self, transaction: Transaction, finding: Finding) -> Manifest:
        """Return a transaction that was handed out cannot be delivered: it goes to the discard topic, or stays there.

        Returns:
            Its manifest.
        """
        transaction.move(Event.REFUSED)
        if transaction.discarded is None:
            transaction.copies = ()  # its decision says that they do not count
        manifest = to_manifest(transaction, finding, self.topic_id, self.partition)
        self._discards.refuse(manifest)
        return manifest

    def refuse_malformed(self, manifest: Manifest) -> None:
        """Move a half that cannot be parsed to the discard topic."""
        self._discards.refuse(manifest)

    def take_parked(self, now: int, messages: int) -> list[Move]:
        """Halves that go to the discard topic undecided, up to about so many; they count as settled from now on.

        What `take_ready` hands out afterwards may need them from there, in a later Kafka transaction.

        Args:
            now: The broker's time, ms.
            messages: How many.
        """
        moves = self._discards.take_followers()
        for move in moves:
            messages -= len(move.halves)
            self._unsettled.settle_late(half.offset for half in move.halves)  # nothing doubles: see _is_sayable
            self._judge(move.transaction)
        until = min(now, self._overdue.ops_known_until())
        for transaction, why in self._parking.choose(self._pending, self._room, until):
            if messages <= 0:
                break
            if not self._is_sayable(transaction):
                continue
            messages -= len(transaction.halves)
            moves.append(self._park(transaction, why))
        self._ask_at_once(self._parking.take_urgent())
        return moves

    def take_removed(self) -> list[Transaction]:
        """Transactions that leave the discard topic undelivered; they count as gone from now on."""
        return self._discards.take_removed()

    def take_malformed(self) -> list[Half]:
        """Halves that cannot be parsed; they count as settled from now on.

        One of which the checkpoint could not say that waits: after a crash it would go to the discard topic again.
        """
        taken: list[Half] = []
        waiting: deque[Half] = deque()
        for half in self._malformed:
            fits = self._unsettled.fits((half.offset,))
            (taken if fits else waiting).append(half)
            if fits:
                self._unsettled.settle((half.offset,))
        self._malformed = waiting
        return taken

    def let_bodies_go(self, now: int) -> None:
        """Let go the bodies of what pends long, at this broker time (ms): they must be fetched again (`has_body`)."""
        self._bodies.let_go(now)

    def take_due(self, now: int, limit: int = sys.maxsize) -> list[CheckRequest]:
        """Check requests for the transactions that are overdue at this broker time (ms), up to so many.

        Those to listeners carry the first half; if its body is not here, it must be put in (`first_half`).
        """
        return [self._request(transaction) for transaction in self._overdue.take(now, limit)]

    def next_due(self) -> int | None:
        """Return the earliest due time, ms of broker time."""
        return self._overdue.next_due()

    def needs_op_end(self, now: int) -> bool:
        """Whether somebody is due, or to be parked, as soon as the end of the op partition is seen."""
        return self._overdue.needs_op_end(now) or (
            self.lacks_room() and self._overdue.ops_known_until() < now - GRACE_MS
        )

    def half_checkpoint(self) -> HalfCheckpoint:
        """Progress of the half partition: the lowest unsettled half, the head, and what is unsettled between."""
        head = max(self._head, self._restored_head)
        unsettled = self._unsettled.runs()
        return HalfCheckpoint(unsettled[0].start if unsettled else head, head, unsettled)

    def op_checkpoint(self) -> OpCheckpoint:
        """Progress of the op partition: no op is passed whose half lies ahead, or that decided what lies discarded."""
        needed = (self._early.oldest(), self._discards.oldest_pin())
        oldest = min((offset for offset in needed if offset is not None), default=self._op_head)
        return OpCheckpoint(oldest, max(self._op_head, self._restored_op_head))

    def read_limit(self, next_half: int) -> int:
        """Halves from this offset on may not be read yet: a checkpoint could not name them all.

        Args:
            next_half: Offset of the half that would be read next.
        """
        return max(min(self._unsettled.limit(next_half), next_half + self._parking.more()), self._restored_head)

    def early_ops_full(self) -> bool:
        """Whether no more ops for halves ahead can be kept."""
        return self._early.size >= EARLY_OPS

    def discarded(self) -> tuple[int, int]:
        """How many transactions lie in the discard topic undecided, and how many that cannot be delivered."""
        return self._discards.count()

    def owes(self, transaction_id: str, offset: int) -> bool:
        """Whether a half that was read is not settled yet, or lies in the discard topic.

        Args:
            transaction_id: Its transaction, of which stragglers may pend when all else of it is settled.
            offset: The half.
        """
        transaction = self._find(transaction_id)
        if transaction is not None:
            return any(half.offset == offset for half in transaction.all_halves())
        return self._discards.holds(transaction_id) and any(
            offset == known for _, known in self._discards.refused(transaction_id).offsets
        )

    def first_half(self, transaction_id: str) -> tuple[bytes | None, int] | None:
        """Where the first half of an undecided transaction is, which a listener needs to judge it.

        Returns:
            Its key in the discard topic, None if it is not there, and its half offset.
        """
        transaction = self._find(transaction_id)
        if transaction is None or (transaction.discarded and not self._discards.is_whole(transaction)):
            return None
        offset = transaction.by_offset()[0][1].offset
        return record_keys(transaction)[offset] if transaction.discarded else None, offset

    def pending(self) -> int:
        """How many transactions are undecided, incomplete, held behind an earlier one, or not taken yet."""
        return len(self._pending)

    def held(self) -> int:
        """How many committed transactions wait behind an earlier one of their ordering key."""
        behind = (transaction for transaction in self._pending.values() if not transaction.is_first)
        return sum(transaction.state is COMMITTED for transaction in behind)

    def oldest_pending(self) -> int | None:
        """Append time of the oldest pending transaction, ms of broker time; None if nothing is pending."""
        oldest = next(iter(self._pending.values()), None)
        times = (self._deferred.since(), None if oldest is None else oldest.appended)
        return min((time for time in times if time is not None), default=None)

    def oldest_undecided(self, append_time: int) -> dict[tuple[str, Truth], int]:
        """Return the append time of the oldest undecided transaction by producer group and truth, ms of broker time.

        Args:
            append_time: Younger transactions are left out.
        """
        oldest: dict[tuple[str, Truth], int] = {}
        for transaction in self._pending.values():
            if transaction.state is PENDING and transaction.appended <= append_time:
                key = (transaction.group, transaction.truth)
                oldest[key] = min(oldest.get(key, append_time), transaction.appended)
        return oldest

    def head(self) -> int:
        """Offset of the half that is read next."""
        return max(self._head, self._restored_head)

    # --- halves -------------------------------------------------------------------------------------------------

    def _add(self, half: Half, control: HalfControl) -> None:
        """Take a half that was read for the first time; defer it if it begins a transaction of a group at its limit.

        While halves of a group are deferred, all further ones are: what is kept of a group was read in its order.
        """
        if self._deferred.holds(control.group) or (
            self._parking.is_full(control.group)
            and control.transaction_id not in self._pending
            and not self._discards.holds(control.transaction_id)
        ):
            self._deferred.add(sys.intern(control.group), half.offset, half.append_time)
            self._parking.exceeds(control.group)
        else:
            self._keep(half, control)

    def _keep(self, half: Half, control: HalfControl) -> None:
        transaction = self._pending.get(control.transaction_id)
        if transaction is None:
            if self._discards.holds(control.transaction_id):
                self._add_to_discarded(half, control)
                return
            transaction = self._open(half, control)
        gaps = transaction.gaps
        if not transaction.add(control.position, half):
            self.counts["half_copy"] += 1
        if transaction.gaps != gaps:
            self._unsettled.reserve(transaction.gaps - gaps)
        self._parking.added(transaction, half)
        self._bodies.added(transaction, half)
        early = self._early.pop(transaction.id)
        for op in early:
            self._apply(transaction, op.source, op.entry)
        if early:
            self._judge(transaction)

    def _open(self, half: Half, control: HalfControl) -> Transaction:
        ordering_key = control.ordering_key(half.key) if self._ordered else None
        group, incarnation = sys.intern(control.group), control.options.incarnation  # the same for very many
        transaction = Transaction(
            control.transaction_id,
            group,
            control.truth,
            ordering_key,
            None if incarnation is None else sys.intern(incarnation),
            self._due(half, control),
            shared_number(half.append_time),
        )
        self._pending[transaction.id] = transaction
        self._overdue.watch(transaction)
        self._lanes.join(transaction)
        return transaction

    def _due(self, half: Half, control: HalfControl) -> int:
        """When a transaction is asked about first: by the age of its half, so that a restart puts nothing off."""
        age = self._policy.transaction_timeout if control.options.immunity is None else control.options.immunity
        return half.append_time + age

    def _add_to_discarded(self, half: Half, control: HalfControl) -> None:
        """Add a half to its parked transaction; of a decided one it is a straggler that does not count."""
        transaction = self._discards.parked(control.transaction_id)
        if transaction is None:
            self._unsettled.settle_late([half.offset])
            self.counts["stray"] += 1
            return
        if any(known.offset == half.offset for known in transaction.all_halves()):
            self._unsettled.settle_late([half.offset])  # it lies there already
            self.counts["half_reread"] += 1
            return
        if not transaction.add(control.position, half.without_body()):
            self.counts["half_copy"] += 1
        self._discards.follow(transaction, half)

    def _find(self, transaction_id: str) -> Transaction | None:
        return self._pending.get(transaction_id) or self._discards.parked(transaction_id)

    # --- parking ------------------------------------------------------------------------------------------------

    def _room(self) -> Room:
        lowest = self._unsettled.lowest(self._head)
        return Room(lowest, self._head, self._unsettled.islands(), self._parking.pending())

    def _ask_at_once(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            transaction.due = 0
            self._overdue.watch(transaction)

    def _park(self, transaction: Transaction, why: str) -> Move:
        """Let an undecided transaction go; those that it held up may be free now."""
        transaction.move(Event.PARKED)
        transaction.discarded = Finding(DiscardReason.UNDECIDED, why)
        halves = [half for _, half in transaction.by_offset()]
        self._leave(transaction)
        transaction.let_bodies_go()
        self._discards.park(transaction)
        self.counts["parked"] += 1
        return Move(transaction, halves)

    # --- ops ----------------------------------------------------------------------------------------------------

    def _op(self, offset: int, source: OpSource, entry: OpEntry) -> None:
        transaction = self._find(entry.transaction_id)
        if (entry.topic_id, entry.partition) != (self.topic_id, self.partition):
            self.counts["op_foreign"] += 1
        elif transaction is not None:
            self._apply(transaction, source, entry)
            if transaction.discarded:
                self._pin(transaction, offset)
            self._judge(transaction)
        elif self._discards.holds(entry.transaction_id):
            self._op_on_refused(offset, source, entry)
        elif self._deferred and (entry.first_offset in self._deferred or entry.last_offset in self._deferred):
            self._op_on_deferred(offset, source, entry)
        elif entry.last_offset < self._head:
            self._op_on_settled(source, entry)
        elif entry.kind not in _DECISIONS or self.early_ops_full():
            self.counts["op_passed"] += 1
        else:
            self._early.keep(EarlyOp(offset, source, entry))

    def _op_on_deferred(self, offset: int, source: OpSource, entry: OpEntry) -> None:
        """Keep a decision until its half is read again, if there is room; else check-back answers."""
        if entry.kind not in _DECISIONS or self._early.size >= EARLY_OPS * EARLY_OPS_OF_DEFERRED:
            self.counts["op_passed"] += 1
        else:
            self._early.keep(EarlyOp(offset, source, entry))

    def _op_on_settled(self, source: OpSource, entry: OpEntry) -> None:
        """Count an op that comes too late; one that contradicts the decision that was obeyed is an alarm (R42)."""
        self.counts["op_settled"] += 1
        found = self._obeyed.contradiction(source, entry)
        if found is not None:
            self.counts["op_contradicts_settled"] += 1
            self._contradictions = [*self._contradictions, found][:MOST]

    def take_contradictions(self) -> list[Contradiction]:
        """Return op entries that contradict decisions that were obeyed, each once."""
        taken, self._contradictions = self._contradictions, []
        return taken

    def _pin(self, transaction: Transaction, offset: int) -> None:
        """Keep a decision on a discarded transaction to be read again until its effect is committed."""
        if transaction.decision is None:
            self._discards.unpin(transaction.id)
        else:
            self._discards.pin(transaction.id, offset)

    def _op_on_refused(self, offset: int, source: OpSource, entry: OpEntry) -> None:
        """Obey an operator who repeats pre-flight, or a decision that removes the transaction."""
        manifest = self._discards.refused(entry.transaction_id)
        transaction = from_manifest(manifest)
        event = transaction.event(entry, source) if is_resumed_by(manifest, entry) else None
        if event is None or self._discards.resumes(transaction.id):
            self.counts["op_dropped"] += 1
            return
        transaction.move(event)
        self._discards.pin(transaction.id, offset)
        if event is Event.DELIVER:
            transaction.decide(replace(entry, kind=OpKind.COMMIT), source)
            self._discards.resume(transaction)
        else:
            self._discards.remove(transaction)
            self._obeyed.note(transaction.id, entry.kind)
        self.counts[_COUNTED_AS[entry.kind, source]] += 1

    def _drop_lost_ops(self) -> None:
        """Drop early ops whose offsets were read without their half; a lost COMMIT is an alarm.

        An op of a restored partition may name a half that was settled before: that one is a replay.
        """
        for op in self._early.drop_below(self._deferred.lowest_of_all(self._head)):
            replay = op.entry.first_offset < self._restored_head
            lost = op.entry.kind is OpKind.COMMIT and not replay
            self.counts["op_lost" if lost else "op_settled"] += 1

    def _apply(self, transaction: Transaction, source: OpSource, entry: OpEntry) -> None:
        """Let an op entry change what is known of a transaction; `_judge` acts on it."""
        event = transaction.event(entry, source)
        if event is None:
            self.counts["op_dropped"] += 1
            return
        transaction.move(event)
        if event is _UNKNOWN:
            self.counts[_COUNTED_AS[entry.kind, source]] += 1
            self._count_unknown(transaction, entry)
        elif event is _CONTRADICTION:
            self.counts["contradiction"] += 1
            transaction.dispute()
            self._ask_at_once([transaction])
        else:
            self.counts[_COUNTED_AS[entry.kind, source]] += 1
            transaction.decide(entry, source)
            if source in _WERE_ASKED:
                self._parking.decided(transaction, self._overdue.ops_known_until())

    def _count_unknown(self, transaction: Transaction, entry: OpEntry) -> None:
        """Count an UNKNOWN answer once: it carries the number of its check."""
        if entry.checks > transaction.unknown_answers:
            transaction.unknown_answers = entry.checks
            transaction.last_answer = entry.reason
            self._parking.answered_unknown(transaction)

    # --- order and completeness ---------------------------------------------------------------------------------

    def _judge(self, transaction: Transaction) -> None:
        """Act on a decision as soon as everything that it lists was read, if it is there at all."""
        decision = transaction.decision
        if decision is None:
            return
        if decision.last_offset >= self._head:
            heapq.heappush(self._waiting, (decision.last_offset, next(self._serial), transaction))
            return
        if not self._is_read(transaction, decision):
            self._lacking.setdefault(transaction.group, []).append(transaction)
            return
        if transaction.state is COMMITTED and not transaction.counted():
            transaction.move(Event.STRAY)
            self.counts["stray"] += 1
        if transaction.state is ROLLED_BACK:
            self._settle(transaction)
        elif self._is_free(transaction):
            self._push_ready(transaction)

    def _push_ready(self, transaction: Transaction) -> None:
        messages, size = len(transaction.halves), transaction.size
        self._ready.append((transaction, messages, size))
        self._ready_messages += messages
        self._ready_bytes += size

    def _pop_ready(self) -> Transaction:
        transaction, messages, size = self._ready.popleft()
        self._ready_messages -= messages
        self._ready_bytes -= size
        return transaction

    def _judge_waiting(self) -> None:
        """Judge again those whose last half lies behind the head by now."""
        while self._waiting and self._waiting[0][0] < self._head:
            transaction = heapq.heappop(self._waiting)[2]
            if self._find(transaction.id) is transaction:
                self._judge(transaction)

    def _is_pending(self, transaction: Transaction) -> bool:
        return self._pending.get(transaction.id) is transaction

    def _is_read(self, transaction: Transaction, decision: OpEntry) -> bool:
        """Return whether all halves up to the last one that a decision lists were read, and none is deferred."""
        return decision.last_offset < self._deferred.lowest(transaction.group, self._head)

    def _is_free(self, transaction: Transaction) -> bool:
        """Whether a transaction may go: committed, read to its last half, and first of its ordering key."""
        if (
            transaction.state is not COMMITTED
            or transaction.decision is None
            or not self._is_read(transaction, transaction.decision)
        ):
            return False
        if transaction.discarded:  # it is out of its order anyway
            return self._discards.is_whole(transaction)
        return self._is_pending(transaction) and transaction.is_first

    def _settle(self, transaction: Transaction) -> None:
        """Settle a transaction that was handed out, or never will be."""
        if transaction.state is ROLLED_BACK and not transaction.discarded:
            self.counts["rolled_back"] += 1
        if transaction.decision is not None:
            self._obeyed.note(transaction.id, transaction.decision.kind)
        if transaction.discarded is None:
            self._leave(transaction)
        elif transaction.state is READY:
            self._discards.leave(transaction)
        else:
            self._unsettled.settle_late(half.offset for half in self._discards.remove(transaction))

    def _leave(self, transaction: Transaction) -> None:
        """Mark the halves of a transaction as settled."""
        del self._pending[transaction.id]
        self._parking.settled(transaction)
        self._bodies.settled(transaction)
        if transaction.gaps:
            self._unsettled.reserve(-transaction.gaps)
        offsets = [half.offset for half in transaction.all_halves()]
        if transaction.state is ROLLED_BACK:
            self._unsettled.settle_late(offsets)
        else:
            self._unsettled.settle(offsets)
        follower = self._lanes.leave(transaction)
        if follower is not None and self._is_free(follower):
            self._push_ready(follower)

    def _request(self, transaction: Transaction) -> CheckRequest:
        positions, lowest, highest = transaction.seen()
        first = transaction.by_offset()[0][1]
        return CheckRequest(
            transaction.id,
            transaction.group,
            transaction.truth,
            self.topic_id,
            self.partition,
            positions,
            lowest,
            highest,
            transaction.unknown_answers + 1,
            transaction.incarnation,
            first.envelope() if transaction.truth is Truth.LISTENER and first.has_body() else None,
        )
