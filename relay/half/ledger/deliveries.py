"""The decided transactions of one half partition: judged, handed out in their order, and settled. Pure."""

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import count

from outbox.protocol.op import OpEntry
from relay.half.ledger.op_decisions import Decisions
from relay.half.ledger.partition_progress import Progress
from relay.half.ledger.pending_transactions import Pending
from relay.half.ledger.ready_queue import ReadyQueue
from relay.half.state.discard_index import Discards
from relay.half.state.message_transaction import COMMITTED, READY, ROLLED_BACK, Event, Transaction
from relay.half.state.parking import Deferred

_FREED = Event.FREED


class Deliveries:
    """Transactions from their decision until they are settled."""

    def __init__(
        self,
        progress: Progress,
        pending: Pending,
        discards: Discards,
        deferred: Deferred,
        decisions: Decisions,
        counts: Counter[str],
    ) -> None:
        self._progress = progress
        self._pending = pending
        self._discards = discards
        self._deferred = deferred
        self._decisions = decisions
        self._counts = counts
        self.queue = ReadyQueue()
        self._waiting: list[tuple[int, int, Transaction]] = []  # heap: the last offset that the decision lists
        self._lacking: dict[str, list[Transaction]] = {}  # decided; halves up to their last offset are deferred
        self._serial = count()

    # --- candidates

    def candidates(self) -> Iterator[Transaction]:
        """Yield committed transactions that may go, in their order.

        Give each to `hand_out` or to `queue.hold` before the next: both change which ones may go.
        One whose listed positions cannot all be found is among them: `Transaction.complete()` is False (INCOMPLETE).
        The bodies of those in the discard topic (`Transaction.discarded`) must be fetched from there.
        """
        self.queue.retry_postponed()
        while (transaction := self.queue.pop()) is not None:
            if not self._is_free(transaction):
                continue
            if self._progress.can_settle(transaction):
                yield transaction
            else:
                self.queue.postpone(transaction)

    def hand_out(self, transaction: Transaction) -> None:
        """Settle a transaction that goes to its real topics with the next Kafka transaction.

        If it cannot be delivered, it must be given to `refuse` before the checkpoint is read.
        """
        transaction.move(_FREED)
        self._settle(transaction)

    # --- order and completeness

    def judge(self, transaction: Transaction) -> None:
        """Act on a decision as soon as everything that it lists was read, if it is there at all."""
        decision = transaction.decision
        if decision is None:
            return
        if decision.last_offset >= self._progress.next_half:
            heapq.heappush(self._waiting, (decision.last_offset, next(self._serial), transaction))
            return
        if not self._is_read(transaction, decision):
            self._lacking.setdefault(transaction.service, []).append(transaction)
            return
        if transaction.state is COMMITTED and not transaction.counted():
            transaction.move(Event.STRAY)
            self._counts["stray"] += 1
        if transaction.state is ROLLED_BACK:
            self._settle(transaction)
        elif self._is_free(transaction):
            self.queue.push(transaction)

    def judge_waiting(self) -> None:
        """Judge again those whose last half is behind the head by now."""
        while self._waiting and self._waiting[0][0] < self._progress.next_half:
            transaction = heapq.heappop(self._waiting)[2]
            if self._is_open(transaction):
                self.judge(transaction)

    def lacks_deferred(self, service: str) -> bool:
        """Return whether a decided transaction of a service waits for deferred halves."""
        return service in self._lacking

    def judge_lacking(self, service: str) -> None:
        """Judge again the transactions of a service that waited for deferred halves."""
        for transaction in self._lacking.pop(service, ()):
            if self._is_open(transaction):
                self.judge(transaction)

    def _is_open(self, transaction: Transaction) -> bool:
        return self._pending.holds(transaction) or self._discards.parked(transaction.id) is transaction

    def _is_read(self, transaction: Transaction, decision: OpEntry) -> bool:
        """Return whether all halves up to the last one that a decision lists were read, and none is deferred."""
        return decision.last_offset < self._deferred.lowest(transaction.service, self._progress.next_half)

    def _is_free(self, transaction: Transaction) -> bool:
        """Return whether a transaction may go: committed, read to its last half, and first of its ordering key."""
        decision = transaction.decision
        if transaction.state is not COMMITTED or decision is None or not self._is_read(transaction, decision):
            return False
        if transaction.discarded:  # it is out of its order anyway
            return self._discards.is_whole(transaction)
        return transaction.is_first and self._pending.holds(transaction)

    def _settle(self, transaction: Transaction) -> None:
        """Settle a transaction that is handed out, or never will be."""
        if transaction.state is ROLLED_BACK and not transaction.discarded:
            self._counts["rolled_back"] += 1
        self._decisions.settled(transaction)
        if transaction.discarded is None:
            self.leave(transaction)
        elif transaction.state is READY:
            self._discards.leave(transaction)
        else:
            self._progress.unsettled.settle_late(half.offset for half in self._discards.remove(transaction))

    def leave(self, transaction: Transaction) -> None:
        """Mark the halves of a transaction as settled; the next one of its ordering key may go."""
        follower = self._pending.settle(transaction)
        if follower is not None and self._is_free(follower):
            self.queue.push(follower)
