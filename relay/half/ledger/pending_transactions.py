"""The pending transactions of one half partition: read and not settled; and their share of the limits. Pure."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outbox.protocol.half import HalfControl, Truth
from relay.half.ledger.partition_progress import Unsettled
from relay.half.state.half_records import Half, shared_number
from relay.half.state.message_transaction import PENDING, ROLLED_BACK, Transaction
from relay.half.state.parking import Parking


@dataclass(frozen=True, slots=True)
class BodyPolicy:
    """When bodies are let go, in one half partition."""

    age: int = 30_000  # of a transaction's first half, ms; most are decided long before
    bytes: int = 16_777_216  # of all bodies, about; beyond it those of the oldest go first


KEEP = BodyPolicy()


class Bodies:
    """The bodies in memory."""

    def __init__(self, policy: BodyPolicy) -> None:
        self._policy = policy
        self._held: dict[str, Transaction] = {}  # the oldest first
        self._bytes = 0

    def added(self, transaction: Transaction, half: Half) -> None:
        size = half.size()
        if not transaction.held_bytes:
            self._held[transaction.id] = transaction
        transaction.held_bytes += size
        self._bytes += size

    def settled(self, transaction: Transaction) -> None:
        if transaction.held_bytes:
            self._forget(transaction)

    def let_go(self, now: int) -> None:
        """Let go what is too old, or too much, at this broker time (ms)."""
        while self._held:
            oldest = next(iter(self._held.values()))
            if self._bytes <= self._policy.bytes and oldest.appended > now - self._policy.age:
                return
            self._forget(oldest)
            oldest.let_bodies_go()

    def _forget(self, transaction: Transaction) -> None:
        del self._held[transaction.id]
        self._bytes -= transaction.held_bytes
        transaction.held_bytes = 0


class Lanes:
    """All lanes of one half partition."""

    def __init__(self, pending: Mapping[str, Transaction]) -> None:
        self._pending = pending
        self._last: defaultdict[str, dict[bytes, Transaction]] = defaultdict(dict)  # by service and ordering key

    def join(self, transaction: Transaction) -> None:
        """Add a transaction behind all others of its lane, if it keeps an order at all."""
        key = transaction.ordering_key
        if key is None:
            return
        of_service = self._last[transaction.service]
        last = of_service.get(key)
        if last is not None:
            last.behind, transaction.is_first = transaction, False
        of_service[key] = transaction

    def is_held(self, service: str, key: bytes) -> bool:
        """Return whether a transaction is in a lane."""
        return key in self._last.get(service, ())

    def leave(self, transaction: Transaction) -> Transaction | None:
        """Take a transaction out that is through; return the one that is first of its lane instead."""
        key = transaction.ordering_key
        if key is None or not transaction.is_first:
            return None  # the one before it passes it over
        follower = transaction.behind
        while follower is not None and self._pending.get(follower.id) is not follower:
            follower = follower.behind
        if follower is None:
            self._end(transaction.service, key)
        else:
            follower.is_first = True
        return follower

    def _end(self, service: str, key: bytes) -> None:
        of_service = self._last[service]
        del of_service[key]
        if not of_service:
            del self._last[service]


class Pending:
    """Transactions by id, in the order of their first halves."""

    def __init__(self, unsettled: Unsettled, parking: Parking, bodies: Bodies) -> None:
        self.by_id: dict[str, Transaction] = {}
        self.lanes = Lanes(self.by_id)
        self._unsettled = unsettled
        self._parking = parking
        self._bodies = bodies

    def __len__(self) -> int:
        return len(self.by_id)

    def holds(self, transaction: Transaction) -> bool:
        return self.by_id.get(transaction.id) is transaction

    def begin(self, half: Half, control: HalfControl, due: int) -> Transaction:
        service, incarnation = sys.intern(control.service), control.options.incarnation  # the same for very many
        transaction = Transaction(
            control.transaction_id,
            service,
            control.truth,
            control.ordering_key(half.key),
            None if incarnation is None else sys.intern(incarnation),
            due,
            shared_number(half.append_time),
        )
        self.by_id[transaction.id] = transaction
        self.lanes.join(transaction)
        return transaction

    def add(self, transaction: Transaction, position: int, half: Half) -> bool:
        """Add a half to a transaction; return whether it is the first one of its position."""
        gaps = transaction.gaps
        is_first = transaction.add(position, half)
        if transaction.gaps != gaps:
            self._unsettled.reserve(transaction.gaps - gaps)
        self._parking.added(transaction, half)
        self._bodies.added(transaction, half)
        return is_first

    def settle(self, transaction: Transaction) -> Transaction | None:
        """Remove a transaction, and mark its halves as settled; return the next one of its ordering key."""
        del self.by_id[transaction.id]
        self._parking.settled(transaction)
        self._bodies.settled(transaction)
        if transaction.gaps:
            self._unsettled.reserve(-transaction.gaps)
        offsets = [half.offset for half in transaction.all_halves()]
        if transaction.state is ROLLED_BACK:
            self._unsettled.settle_late(offsets)
        else:
            self._unsettled.settle(offsets)
        return self.lanes.leave(transaction)

    def oldest(self) -> int | None:
        """Return the append time of the oldest one, ms of broker time; None if there is none."""
        first = next(iter(self.by_id.values()), None)
        return None if first is None else first.appended

    def oldest_undecided(self, append_time: int) -> dict[tuple[str, Truth], int]:
        """Return when the oldest undecided one of a service and truth was appended, none younger than a time (ms)."""
        oldest: dict[tuple[str, Truth], int] = {}
        for transaction in self._undecided(append_time):
            key = (transaction.service, transaction.truth)
            oldest[key] = min(oldest.get(key, append_time), transaction.appended)
        return oldest

    def _undecided(self, append_time: int) -> Iterable[Transaction]:
        pending = self.by_id.values()
        return (found for found in pending if found.state is PENDING and found.appended <= append_time)
