"""The ledger of one half partition: halves, ops and verdicts in; deliveries, checks, discards, checkpoints out. Pure.

Batch shaped: lists in, lists out, no I/O, no clock. What it hands out for delivery counts as settled. If that Kafka
transaction fails, the ledger is thrown away and created again from the committed checkpoint (R18).
"""

import sys
from collections import Counter, deque
from collections.abc import Iterable

from outbox.protocol.check import CheckRequest
from outbox.protocol.checkpoint import OpCheckpoint
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import HalfControl
from relay.delivery.rules.outgoing import Finding
from relay.delivery.rules.volume import BatchPolicy
from relay.half.ledger.deliveries import Deliveries
from relay.half.ledger.op_decisions import Decisions, Dropped, EarlyOp
from relay.half.ledger.partition_progress import Checkpoints, OpProgress, Progress
from relay.half.ledger.pending_transactions import KEEP, Bodies, BodyPolicy, Pending
from relay.half.ledger.plain_halves import OpenTo, Plain, PlainHalves
from relay.half.state.check_schedule import CheckPolicy, Overdue, check_request
from relay.half.state.discard_index import Discards, ParkedHalves, from_manifest, to_manifest
from relay.half.state.half_records import Half, OpRecord
from relay.half.state.message_transaction import Event, Transaction
from relay.half.state.parking import DEFAULT, GRACE_MS, Deferred, Parking, ParkingPolicy, Room


class Ledger:
    """The state of one half partition, and of its op and verdict partition.

    Its parts are public for those who look at what waits; only the ledger itself changes them, but for what
    `deliveries` and `discards` hand out.
    """

    def __init__(
        self,
        topic_id: str,
        partition: int,
        checkpoints: Checkpoints,
        policy: CheckPolicy,
        parking: ParkingPolicy = DEFAULT,
        bodies: BodyPolicy = KEEP,
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.counts: Counter[str] = Counter()
        self._policy = policy
        self.progress = Progress(checkpoints)
        self._parking = Parking(parking)
        self.bodies = Bodies(bodies)
        self.deferred = Deferred()
        self.discards = Discards(parking.keep_discarded_ms)
        self.pending = Pending(self.progress.unsettled, self._parking, self.bodies)
        self.overdue = Overdue(policy, self.pending.by_id.get, self.discards.parked)
        plain_ids = set[str]()
        self.decisions = Decisions(
            (topic_id, partition), self.counts, plain_ids, self.discards, self.deferred, self._parking, self.overdue
        )
        self.plain = PlainHalves(plain_ids, self.progress, self.pending, self.discards, self.decisions)
        self.deliveries = Deliveries(
            self.progress, self.pending, self.discards, self.deferred, self.decisions, self.counts
        )
        self._early: list[Transaction] = []  # that were decided before they were read
        self._later: list[EarlyOp] = []  # on transactions here, while halves of theirs may be among the plain ones
        self._malformed: deque[Half] = deque()
        self.dropped = Dropped()

    # --- in

    def restore_discards(self, manifests: Iterable[Manifest]) -> None:
        """Take the manifests of the discard partition, before anything else is read."""
        for manifest in manifests:
            if (manifest.topic_id, manifest.partition) != (self.topic_id, self.partition):
                continue  # of a half topic that was recreated
            if manifest.reason is DiscardReason.UNDECIDED:
                transaction = from_manifest(manifest)
                self.discards.park(transaction)
                self.overdue.watch(transaction)
            else:
                self.discards.refuse(manifest)

    def read_halves(self, halves: Iterable[Half]) -> None:
        """Take halves in the order of their offsets; those that the checkpoint names settled are skipped."""
        for half in halves:
            if half.offset < self.progress.next_half:
                self.counts["half_reread"] += 1
            elif self.progress.read_half(half.offset):
                self._add(half)
        self._all_read()

    def take_plain(self, open_to: OpenTo, limit: BatchPolicy, now: int) -> list[Plain]:
        """Let plain halves leave, and take those that are left over, see `PlainHalves.take`."""
        taken, left = self.plain.take(open_to, limit, now)
        for half in left:
            self._add(half)
        self._all_read()
        later, self._later = self._later, []
        for op in later:
            self._read_entry(op)
        return taken

    def _all_read(self) -> None:
        """Act on decisions on what was just read, and drop ops on what never comes."""
        early, self._early = self._early, []
        for transaction in early:
            self.deliveries.judge(transaction)
        self.deliveries.judge_waiting()
        below = self.plain.lowest(self.deferred.lowest_of_all(self.progress.next_half))
        self.decisions.drop_lost(below, self.progress.restored_head)

    def deferred_wanted(self, most: int) -> list[int]:
        """Return offsets of deferred halves that are to be read again now, ascending, and all of one service."""
        for service in self.deferred.services():
            room = (
                most
                if self.deliveries.lacks_deferred(service)
                else min(self._parking.room_of(service), self._parking.more(), most)
            )
            if room > 0:
                return self.deferred.first(service, room)
            self._parking.exceeds(service)
        return []

    def read_deferred(self, halves: Iterable[Half]) -> None:
        """Take halves that `deferred_wanted` named, in its order; the last ones may be left out."""
        service = None
        for half in halves:
            if half.control is None:
                raise ValueError(
                    f"internal error: the half at offset {half.offset} cannot be parsed, although it was parsed before"
                )
            service = half.control.service
            self.deferred.remove_lowest(service)
            self._keep(half, half.control)
        if service is not None:
            self.deliveries.judge_lacking(service)
        self._all_read()

    def restored(self) -> None:
        """Go on at the head of the checkpoint: all halves that it names unsettled were read."""
        self.progress.restored()
        self._all_read()

    def read_ops(self, records: Iterable[OpRecord]) -> None:
        """Take records of the op and verdict partition, those of each in the order of their offsets."""
        for record in records:
            if not self.progress.read_op(record.offset, verdict=record.is_verdict):
                self.counts["op_reread"] += 1
                continue
            self.overdue.ops_read_until(record.append_time, verdict=record.is_verdict)
            if record.source is None:
                self.counts[self.dropped.note(record)] += 1
                continue
            for entry in record.entries:
                op = EarlyOp(record.offset, record.source, entry, record.append_time, record.is_verdict)
                if self.plain and self.find(entry.transaction_id):
                    self._later.append(op)
                else:
                    self._read_entry(op)

    def _read_entry(self, op: EarlyOp) -> None:
        transaction = self.find(op.entry.transaction_id)
        if self.decisions.read(op, transaction, self.progress.next_half) and transaction is not None:
            self.deliveries.judge(transaction)

    # --- out: discards

    def release_crowding(self) -> None:
        """Give up waiting for real topics where it takes room that others need."""
        if self.lacks_room():
            room = self._room()
            waiting = self.deliveries.queue.waiting()
            self.deliveries.queue.give_up([found for found in waiting if self._parking.crowds(found[1], room)])

    def refuse(self, transaction: Transaction, finding: Finding) -> Manifest:
        """Move a transaction that was handed out and cannot be delivered to the discard topic, or leave it there."""
        transaction.move(Event.REFUSED)
        if transaction.discarded is None:
            transaction.copies = ()  # they do not count by its decision
        manifest = to_manifest(transaction, finding, self.topic_id, self.partition)
        self.discards.refuse(manifest)
        return manifest

    def take_parked(self, now: int, messages: int) -> list[ParkedHalves]:
        """Take halves that go to the discard topic undecided, up to about so many; they count as settled.

        Transactions that are handed out afterwards may need them from there, in a later Kafka transaction.
        """
        moves = self.discards.take_followers()
        for move in moves:
            messages -= len(move.halves)
            self.progress.unsettled.settle_late(half.offset for half in move.halves)  # see Progress.can_settle
            self.deliveries.judge(move.transaction)
        until = min(now, self.overdue.ops_known_until())
        for transaction, why in self._parking.choose(self.pending.by_id, self._room, until):
            if messages <= 0:
                break
            if not self.progress.can_settle(transaction):
                continue
            messages -= len(transaction.halves)
            moves.append(self._park(transaction, why))
        self.overdue.ask_now(self._parking.take_urgent())
        return moves

    def take_malformed(self) -> list[Half]:
        """Take halves that cannot be parsed; they count as settled.

        One that the checkpoint cannot encode as settled waits: after a crash it would go to the discard topic again.
        """
        taken: list[Half] = []
        waiting: deque[Half] = deque()
        for half in self._malformed:
            fits = self.progress.unsettled.fits((half.offset,))
            (taken if fits else waiting).append(half)
            if fits:
                self.progress.unsettled.settle((half.offset,))
        self._malformed = waiting
        return taken

    # --- out: check requests and checkpoints

    def take_due(self, now: int, limit: int = sys.maxsize) -> list[CheckRequest]:
        """Return check requests for the transactions that are overdue at this broker time (ms), up to so many.

        Those to listeners carry the first half; if its body is not here, it must be put in (`first_half`).
        """
        return [check_request(found, self.topic_id, self.partition) for found in self.overdue.take(now, limit)]

    def needs_op_end(self, now: int) -> bool:
        """Return whether a check, a parking or a deletion by age waits only for the end of an op partition."""
        needed_until = max(now - GRACE_MS if self.lacks_room() else 0, self.discards.ops_needed_until)
        return self.overdue.needs_op_end(now) or self.overdue.ops_known_until() < needed_until

    def checkpoints(self) -> Checkpoints:
        """Return the progress of all three partitions, which is committed together."""
        ops, verdicts = self.progress.ops, self.progress.verdicts
        places = self._checkpoint(ops, verdict=False), self._checkpoint(verdicts, verdict=True)
        return Checkpoints(self.progress.half_checkpoint(), *places)

    def _checkpoint(self, progress: OpProgress, *, verdict: bool) -> OpCheckpoint:
        needed = self.decisions.needed(progress.next, verdict=verdict)
        later = next((op.offset for op in self._later if op.is_verdict is verdict), None)
        return progress.checkpoint((*needed, later, self.discards.oldest_pin(verdict=verdict)))

    def read_limit(self, next_half: int) -> int:
        """Return the offset from which on halves may not be read yet, see `Progress.read_limit`."""
        return self.progress.read_limit(next_half, self._parking.more())

    def oldest_pending(self) -> int | None:
        """Return the append time of the oldest pending half, ms of broker time; None if nothing is pending."""
        times = (self.deferred.since(), self.pending.oldest())
        return min((time for time in times if time is not None), default=None)

    # --- halves

    def _add(self, half: Half) -> None:
        """Take a half that was read for the first time; defer it if it begins a transaction of a service at its limit.

        While halves of a service are deferred, all further ones are: what is kept of a service was read in its order.
        """
        control = half.control
        if control is None:
            self._malformed.append(half)
        elif self.deferred.holds(control.service) or (
            self._parking.is_full(control.service)
            and control.transaction_id not in self.pending.by_id
            and not self.discards.holds(control.transaction_id)
        ):
            self.deferred.add(sys.intern(control.service), half.offset, half.append_time)
            self._parking.exceeds(control.service)
        else:
            self._keep(half, control)

    def _keep(self, half: Half, control: HalfControl) -> None:
        transaction = self.pending.by_id.get(control.transaction_id)
        if transaction is None:
            if self.discards.holds(control.transaction_id):
                self._add_to_discarded(half, control)
                return
            transaction = self.pending.begin(half, control, self._due(half, control))
            self.overdue.watch(transaction)
        if not self.pending.add(transaction, control.position, half):
            self.counts["half_copy"] += 1
        if self.decisions.apply_early(transaction):
            self._early.append(transaction)

    def _due(self, half: Half, control: HalfControl) -> int:
        """Return when a transaction is asked about first: by the age of its half, also after a restart."""
        age = self._policy.transaction_timeout_ms if control.options.immunity is None else control.options.immunity
        return half.append_time + age

    def _add_to_discarded(self, half: Half, control: HalfControl) -> None:
        """Add a half to its parked transaction; of a decided one it is a straggler that does not count."""
        transaction = self.discards.parked(control.transaction_id)
        is_known = transaction is not None and any(half.offset == known.offset for known in transaction.all_halves())
        if transaction is None or is_known:
            self.progress.unsettled.settle_late([half.offset])
            self.counts["half_reread" if is_known else "stray"] += 1
            return
        if not transaction.add(control.position, half.without_body()):
            self.counts["half_copy"] += 1
        self.discards.follow(transaction, half)

    def find(self, transaction_id: str) -> Transaction | None:
        """Return a transaction that is pending, or parked in the discard topic."""
        return self.pending.by_id.get(transaction_id) or self.discards.parked(transaction_id)

    # --- parking

    def _room(self) -> Room:
        head, unsettled = self.progress.next_half, self.progress.unsettled
        return Room(unsettled.lowest(head), head, unsettled.islands(), self._parking.pending())

    def lacks_room(self) -> bool:
        """Return whether pending transactions take room that others need."""
        return self._parking.is_wanted(self._room())

    def _park(self, transaction: Transaction, why: str) -> ParkedHalves:
        """Move an undecided transaction to the discard topic; those of its ordering key may be free then."""
        transaction.move(Event.PARKED)
        transaction.discarded = Finding(DiscardReason.UNDECIDED, why)
        halves = [half for _, half in transaction.by_offset()]
        self.deliveries.leave(transaction)
        transaction.let_bodies_go()
        self.discards.park(transaction)
        self.counts["parked"] += 1
        return ParkedHalves(transaction, halves)
