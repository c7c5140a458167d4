"""The ledger of one half partition: halves and ops in; deliveries, check requests, discards and checkpoints out.

Pure and batch shaped: lists in, lists out, no I/O, no clock. What it hands out for delivery it holds for settled; if
that Kafka transaction fails, the ledger is thrown away and made anew from the committed checkpoint (R18).
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable

from outbox.protocol.check import CheckRequest
from outbox.protocol.checkpoint import WINDOW, HalfCheckpoint, OpCheckpoint
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.half import Half, OpRecord
from relay.overdue import CheckPolicy, Overdue
from relay.transaction import TRANSITIONS, Event, State, Transaction

EARLY_OPS = 100_000
"""Ops kept for halves that lie ahead."""


class Ledger:
    """What is known of one half partition and its op partition.

    Args:
        topic_id: Id of the half topic, as a UUID.
        partition: Partition number of both.
        half: Checkpoint of the half partition.
        op: Checkpoint of the op partition.
        policy: When to ask about undecided transactions.
        ordered: Whether transactions of one (producer group, ordering key) keep their order.
    """

    def __init__(
        self,
        topic_id: str,
        partition: int,
        half: HalfCheckpoint,
        op: OpCheckpoint,
        policy: CheckPolicy,
        *,
        ordered: bool = True,
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.counts: Counter[str] = Counter()
        self._ordered = ordered
        self._policy = policy
        self._restored_head = half.head
        self._restored = frozenset(half.unsettled)
        self._head = half.offset
        self._op_head = op.offset
        self._unsettled: dict[int, None] = dict.fromkeys(half.unsettled)
        self._pending: dict[str, Transaction] = {}
        self._lanes: dict[tuple[str, bytes], deque[Transaction]] = {}
        self._ready: deque[Transaction] = deque()
        self._malformed: deque[Half] = deque()
        self._incomplete: dict[str, Transaction] = {}
        self._early: dict[str, list[tuple[int, OpSource, OpEntry]]] = {}
        self._early_count = 0
        self._early_until: list[tuple[int, str]] = []
        self._overdue = Overdue(policy)

    # --- in -----------------------------------------------------------------------------------------------------

    def read_halves(self, halves: Iterable[Half]) -> None:
        """Take halves in the order of their offsets; those that the checkpoint names settled are passed over."""
        for half in halves:
            offset = half.offset
            if offset < self._head:
                self.counts["half_reread"] += 1
                continue
            self._head = offset + 1
            if offset < self._restored_head and offset not in self._restored:
                continue
            self._unsettled[offset] = None
            if half.control is None:
                self._malformed.append(half)
            else:
                self._add(half, half.control)
        self._judge_incomplete()
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
        """The op partition was read to its end, seen at this broker time (ms)."""
        self._overdue.ops_read_until(broker_time)

    # --- out ----------------------------------------------------------------------------------------------------

    def take_ready(self, messages: int) -> list[Transaction]:
        """Committed transactions in their order, up to about so many messages; they count as settled from now on.

        One whose listed positions cannot all be found is among them: `Transaction.complete()` is False (INCOMPLETE).
        """
        taken: list[Transaction] = []
        while self._ready and messages > 0:
            transaction = self._ready.popleft()
            messages -= len(transaction.halves)
            self._settle(transaction)
            taken.append(transaction)
        return taken

    def take_malformed(self) -> list[Half]:
        """Halves that cannot be parsed; they count as settled from now on."""
        taken = list(self._malformed)
        self._malformed.clear()
        for half in taken:
            del self._unsettled[half.offset]
        return taken

    def take_due(self, now: int) -> list[CheckRequest]:
        """Check requests for the transactions that are overdue at this broker time (ms)."""
        return [self._request(transaction) for transaction in self._overdue.take(now)]

    def next_due(self) -> int | None:
        """The earliest due time, ms of broker time."""
        return self._overdue.next_due()

    def needs_op_end(self, now: int) -> bool:
        """Whether somebody is due as soon as the end of the op partition is seen."""
        return self._overdue.needs_op_end(now)

    def half_checkpoint(self) -> HalfCheckpoint:
        """Progress of the half partition: the lowest unsettled half, the head, and what is unsettled between."""
        head = max(self._head, self._restored_head)
        unsettled = tuple(self._unsettled)
        return HalfCheckpoint(unsettled[0] if unsettled else head, head, unsettled)

    def op_checkpoint(self) -> OpCheckpoint:
        """Progress of the op partition: no op whose half lies ahead is passed."""
        oldest = next(iter(self._early.values()), None)  # kept in the order of their offsets
        return OpCheckpoint(oldest[0][0] if oldest else self._op_head, self._op_head)

    def read_limit(self, next_half: int) -> int:
        """Halves from this offset on may not be read yet: a checkpoint could not name them all.

        Args:
            next_half: Offset of the half that would be read next.
        """
        lowest = next(iter(self._unsettled), next_half)
        return max(lowest + WINDOW, self._restored_head)

    def early_ops_full(self) -> bool:
        """Whether no more ops for halves ahead can be kept."""
        return self._early_count >= EARLY_OPS

    def pending(self) -> int:
        """How many transactions are undecided, incomplete or held behind an earlier one."""
        return len(self._pending)

    # --- halves -------------------------------------------------------------------------------------------------

    def _add(self, half: Half, control: HalfControl) -> None:
        transaction = self._pending.get(control.transaction_id)
        if transaction is None:
            transaction = self._open(half, control)
        elif control.position in transaction.halves:
            self.counts["half_copy"] += 1
            del self._unsettled[half.offset]
            return
        transaction.halves[control.position] = half
        for _, source, entry in self._pop_early(transaction.id):
            self._decide(transaction, source, entry)
        if transaction.decision is not None:
            self._judge(transaction)

    def _open(self, half: Half, control: HalfControl) -> Transaction:
        ordering_key = control.ordering_key(half.key) if self._ordered else None
        age = self._policy.transaction_timeout if control.options.immunity is None else control.options.immunity
        transaction = Transaction(
            control.transaction_id,
            control.group,
            control.truth,
            None if ordering_key is None else (control.group, ordering_key),
            control.options.incarnation,
            half.append_time + age,
        )
        self._pending[transaction.id] = transaction
        self._overdue.watch(transaction)
        if transaction.lane is not None:
            self._lanes.setdefault(transaction.lane, deque()).append(transaction)
        return transaction

    # --- ops ----------------------------------------------------------------------------------------------------

    def _op(self, offset: int, source: OpSource, entry: OpEntry) -> None:
        transaction = self._pending.get(entry.transaction_id)
        if (entry.topic_id, entry.partition) != (self.topic_id, self.partition):
            self.counts["op_foreign"] += 1
        elif transaction is not None:
            self._decide(transaction, source, entry)
        elif entry.last_offset < max(self._head, self._restored_head) and not self._restoring(entry):
            self.counts["op_settled"] += 1
        elif entry.kind is OpKind.UNKNOWN or self.early_ops_full():
            self.counts["op_passed"] += 1
        else:
            self._early.setdefault(entry.transaction_id, []).append((offset, source, entry))
            self._early_count += 1
            heapq.heappush(self._early_until, (entry.last_offset, entry.transaction_id))

    def _restoring(self, entry: OpEntry) -> bool:
        """Whether halves of the entry may still come from below the restored head."""
        return self._head < self._restored_head and entry.last_offset >= self._head

    def _pop_early(self, transaction_id: str) -> list[tuple[int, OpSource, OpEntry]]:
        ops = self._early.pop(transaction_id, [])
        self._early_count -= len(ops)
        return ops

    def _drop_lost_ops(self) -> None:
        """Drop early ops whose offsets were read without their half; a lost COMMIT is an alarm.

        An op of a restored partition may name a half that was settled before: that one is a replay.
        """
        while self._early_until and self._early_until[0][0] < self._head:
            for _, _, entry in self._pop_early(heapq.heappop(self._early_until)[1]):
                replay = entry.first_offset < self._restored_head
                lost = entry.kind is OpKind.COMMIT and not replay
                self.counts["op_lost" if lost else "op_settled"] += 1

    def _decide(self, transaction: Transaction, source: OpSource, entry: OpEntry) -> None:
        event = transaction.event(entry, source)
        if event is None or (transaction.state, event) not in TRANSITIONS:
            self.counts["op_dropped"] += 1
            return
        transaction.move(event)
        _APPLY[event](self, transaction, source, entry)

    def _decided(self, transaction: Transaction, source: OpSource, entry: OpEntry) -> None:
        transaction.decision, transaction.decided_by = entry, source
        self.counts[f"{entry.kind.name.lower()}_{source}"] += 1
        self._judge(transaction)

    def _unknown(self, transaction: Transaction, _source: OpSource, entry: OpEntry) -> None:
        """An answer counts once: it carries the number of the check that it answers."""
        if entry.checks > transaction.unknown_answers:
            transaction.unknown_answers = entry.checks
            transaction.last_answer = entry.reason
        self.counts["unknown"] += 1

    def _contradiction(self, transaction: Transaction, _source: OpSource, _entry: OpEntry) -> None:
        transaction.decision = transaction.decided_by = None
        self._incomplete.pop(transaction.id, None)
        transaction.due = 0
        self._overdue.watch(transaction)
        self.counts["contradiction"] += 1

    # --- order and completeness ---------------------------------------------------------------------------------

    def _judge(self, transaction: Transaction) -> None:
        """Act on a decision if nothing that it lists is missing, or if what is missing can no longer come."""
        decision = transaction.decision
        if decision is None or transaction.state is State.READY or transaction.id not in self._pending:
            return
        if not transaction.complete() and self._head <= decision.last_offset:
            self._incomplete[transaction.id] = transaction
            return
        self._incomplete.pop(transaction.id, None)
        if transaction.state is State.COMMITTED and not transaction.counted():
            transaction.move(Event.STRAY)
            self.counts["stray"] += 1
        if transaction.state is State.ROLLED_BACK:
            self._settle(transaction)
        elif transaction.lane is None:
            self._hand_out(transaction)
        self._free(transaction.lane)

    def _judge_incomplete(self) -> None:
        for transaction in list(self._incomplete.values()):
            self._judge(transaction)

    def _free(self, lane: tuple[str, bytes] | None) -> None:
        """Hand out what stands at the front of a lane: everything up to the first transaction that must wait."""
        queue = self._lanes.get(lane) if lane is not None else None
        if lane is None or queue is None:
            return
        while queue and queue[0].state is not State.PENDING and queue[0].id not in self._incomplete:
            transaction = queue.popleft()
            if transaction.state is State.COMMITTED:
                self._hand_out(transaction)
        if not queue:
            del self._lanes[lane]

    def _hand_out(self, transaction: Transaction) -> None:
        transaction.move(Event.FREED)
        self._ready.append(transaction)

    def _settle(self, transaction: Transaction) -> None:
        del self._pending[transaction.id]
        for half in transaction.halves.values():
            del self._unsettled[half.offset]

    def _request(self, transaction: Transaction) -> CheckRequest:
        positions, first, last = transaction.seen()
        return CheckRequest(
            transaction.id,
            transaction.group,
            transaction.truth,
            self.topic_id,
            self.partition,
            positions,
            first,
            last,
            transaction.unknown_answers + 1,
            transaction.incarnation,
            transaction.first().envelope() if transaction.truth is Truth.LISTENER else None,
        )


_APPLY: dict[Event, Callable[[Ledger, Transaction, OpSource, OpEntry], None]] = {
    Event.COMMIT: Ledger._decided,
    Event.ROLLBACK: Ledger._decided,
    Event.UNKNOWN: Ledger._unknown,
    Event.CONTRADICTION: Ledger._contradiction,
}
