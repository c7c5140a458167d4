"""The decided transactions of one half partition: judged, handed out in their order as records, and settled. Pure.

Some wait for a topic or for the checkpoint.
"""

import heapq
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import count

from outbox.protocol.discard import DiscardReason, Manifest, manifest_key, message_key
from outbox.protocol.half import HalfControl, Truth, count_header, real_headers
from outbox.protocol.names import LATE_HEADER
from outbox.protocol.op import OpEntry
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from relay.half.ledger.op_decisions import Decisions
from relay.half.ledger.partition_progress import Progress
from relay.half.ledger.pending_transactions import Pending
from relay.half.ledger.plain_halves import Plain
from relay.half.state.discard_index import Discards, ParkedHalves, record_keys
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import COMMITTED, READY, ROLLED_BACK, Event, Transaction
from relay.half.state.parking import Deferred


class ReadyQueue:
    """The queue of one half partition.

    A transaction may be in it twice, or be decided otherwise meanwhile: who takes it checks that it is free.
    """

    def __init__(self) -> None:
        self._queue: deque[Transaction] = deque()
        self._postponed: list[Transaction] = []
        self._held: defaultdict[str, dict[str, Transaction]] = defaultdict(dict)  # by real topic and transaction id

    def __len__(self) -> int:
        """Return how many entries there are, waiting ones included."""
        return len(self._queue) + len(self._postponed) + self.held()

    def has_some(self) -> bool:
        """Return whether there is something to take; it may not be free any more."""
        return bool(self._queue)

    def push(self, transaction: Transaction) -> None:
        self._queue.append(transaction)

    def pop(self) -> Transaction | None:
        """Take the first transaction; None: the queue is empty."""
        return self._queue.popleft() if self._queue else None

    # --- those that wait until the checkpoint can encode that they are settled (R20)

    def postpone(self, transaction: Transaction) -> None:
        """Keep a transaction out of the queue until `retry_postponed`."""
        self._postponed.append(transaction)

    def retry_postponed(self) -> None:
        """Queue the postponed transactions, the lowest offset first: runs shrink from their edges."""
        for transaction in sorted(self._postponed, key=lambda found: found.by_offset()[0][1].offset):
            self.push(transaction)
        self._postponed.clear()

    # --- those that wait for a real topic

    def hold(self, transaction: Transaction, topic: str) -> None:
        """Keep a transaction out of the queue until its real topic is released."""
        self._held[topic][transaction.id] = transaction

    def release(self, topics: Iterable[str], *, give_up: bool = False) -> None:
        """Queue what waits for real topics; if it is given up, pre-flight decides on it as it is."""
        for topic in topics:
            for transaction in self._held.pop(topic, {}).values():
                transaction.given_up |= give_up
                self.push(transaction)

    def give_up(self, transactions: Iterable[tuple[str, Transaction]]) -> None:
        """Queue single transactions that wait for a topic; they wait no longer."""
        for topic, transaction in transactions:
            del self._held[topic][transaction.id]
            transaction.given_up = True
            self.push(transaction)

    def waiting(self) -> Iterator[tuple[str, Transaction]]:
        """Yield the committed transactions that wait for a real topic, each with the topic."""
        for topic, transactions in self._held.items():
            for transaction in transactions.values():
                if transaction.state is COMMITTED:
                    yield topic, transaction

    def topics(self, among: Collection[str]) -> set[str]:
        """Return the topics for which a committed transaction waits; transactions decided otherwise are removed."""
        found: set[str] = set()
        for topic in among:
            transactions = self._held.get(topic, {}).values()
            if any(transaction.state is COMMITTED for transaction in transactions):
                found.add(topic)
            else:
                self._held.pop(topic, None)
        return found

    def held(self) -> int:
        """Return how many transactions wait for a real topic, also those decided otherwise since the last look."""
        return sum(map(len, self._held.values()))


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


def deliver(transaction: Transaction, partition: int) -> list[Record]:
    """Return the records of a committed transaction on their real topics, in the order of their positions.

    What comes from the discard topic is out of its order, and a header marks it.
    """
    counted = [(half, half.control) for half in transaction.counted() if half.control]
    records = [_real(half, control, partition, len(counted)) for half, control in counted]
    if transaction.discarded:
        for record in records:
            record.headers.append((LATE_HEADER, str(transaction.discarded.reason).encode()))
    return records


def deliver_plain(plain: Iterable[Plain], partition: int) -> list[Record]:
    """Return the records of halves that are the only ones of their transactions."""
    return [_real(half, half.control, partition, 1) for half, _ in plain if half.control]


def _real(half: Half, control: HalfControl, partition: int, messages: int) -> Record:
    headers = [*real_headers(control, half.headers, partition, half.offset), count_header(messages)]
    return Record(control.topic, control.partition, half.key, half.value, headers, half.timestamp())


def discard(move: ParkedHalves, manifest: Manifest, topic: str) -> Iterator[Record]:
    """Yield the records of halves that go to the discard topic, then the manifest of their transaction."""
    keys = record_keys(move.transaction)
    for half in move.halves:
        yield Record(topic, manifest.partition, keys[half.offset], half.envelope().encode(), [], half.append_time)
    yield _manifest(manifest, topic)


def tombstones(keys: Iterable[bytes], transaction: Transaction, topic: str, partition: int) -> Iterator[Record]:
    """Yield the tombstones that remove records of a transaction from the discard topic."""
    for key in keys:
        yield Record(topic, partition, key, None, [], transaction.first().append_time)


def malformed(half: Half, topic_id: str, partition: int) -> Manifest:
    """Return the manifest of a half that cannot be parsed, under an id made from its place."""
    transaction_id = str(uuid.uuid5(uuid.UUID(topic_id), f"{partition}/{half.offset}"))
    return Manifest(
        transaction_id,
        "unknown",
        Truth.ROW,
        topic_id,
        partition,
        DiscardReason.MALFORMED,
        half.error,
        None,
        Positions.first(1),
        ((0, half.offset),),
        half.append_time,
    )


def discard_malformed(half: Half, manifest: Manifest, topic: str) -> Iterator[Record]:
    """Yield the records of a half that cannot be parsed."""
    key = message_key(manifest.transaction_id, 0)
    yield Record(topic, manifest.partition, key, half.envelope().encode(), [], half.append_time)
    yield _manifest(manifest, topic)


def _manifest(manifest: Manifest, topic: str) -> Record:
    key = manifest_key(manifest.transaction_id)
    return Record(topic, manifest.partition, key, manifest.encode(), [], manifest.first_append_time)
