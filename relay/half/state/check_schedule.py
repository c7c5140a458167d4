"""When a transaction is overdue, by the broker's clock, and when to ask again. Pure: time comes in as numbers."""

import heapq
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from relay.delivery.rules.topic_gate import growing_pause
from relay.half.state.discard_index import Discards, record_keys
from relay.half.state.message_transaction import State, Transaction


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """When to ask."""

    transaction_timeout_ms: int = 6_000
    """Age at the first check, ms, unless the message has an immunity time of its own."""
    check_interval_ms: int = 30_000  # pause after the first check, ms; it doubles from check to check
    check_interval_max_ms: int = 600_000

    def pause(self, transaction_id: str, asked: int) -> int:
        """Return the pause after the given number of checks, ms."""
        return growing_pause(self.check_interval_ms, self.check_interval_max_ms, asked, transaction_id)


class Overdue:
    """Who is due when, and how far the op and the verdict partition are known.

    A transaction is asked about only once both were read past its due time, or to an end of partition seen after it: a
    relay that catches up asks nothing needlessly. Transactions are found by id, not kept here: very many may pend.
    """

    def __init__(self, policy: CheckPolicy, *find: Callable[[str], Transaction | None]) -> None:
        self._policy = policy
        self._find = find
        self._agenda: list[tuple[int, int, str]] = []  # heap: when, a serial number, whose transaction
        self._serial = count()
        self._read_until = [0, 0]  # the op partition, the verdict partition

    def watch(self, transaction: Transaction) -> None:
        """Put a transaction on the clock, at its due time; an earlier entry of it is void."""
        heapq.heappush(self._agenda, (transaction.due, next(self._serial), transaction.id))

    def ask_now(self, transactions: Iterable[Transaction]) -> None:
        """Make transactions due at once."""
        for transaction in transactions:
            transaction.due = 0
            self.watch(transaction)

    def ops_read_until(self, broker_time: int, *, verdict: bool = False) -> None:
        """Note that all ops, or all verdicts, that were appended before this time are read."""
        self._read_until[verdict] = max(self._read_until[verdict], broker_time)

    def ops_known_until(self) -> int:
        """All ops and verdicts that were appended before this time are read, ms of broker time."""
        return min(self._read_until)

    def next_due(self) -> int | None:
        """Return the earliest due time, ms of broker time."""
        while self._agenda:
            due, _, id_ = self._agenda[0]
            if self._pending(due, id_) is not None:
                return due
            heapq.heappop(self._agenda)
        return None

    def needs_op_end(self, now: int) -> bool:
        """Return whether a check is due, and only the end of the op or verdict partition must still be seen."""
        due = self.next_due()
        return due is not None and self.ops_known_until() < due <= now

    def take(self, now: int, limit: int = sys.maxsize) -> list[Transaction]:
        """Return so many transactions at most to ask about now, the longest overdue first; each is due again later."""
        taken: list[Transaction] = []
        until = min(now, self.ops_known_until())
        while len(taken) < limit and self._agenda and self._agenda[0][0] <= until:
            due, _, id_ = heapq.heappop(self._agenda)
            transaction = self._pending(due, id_)
            if transaction is None:
                continue
            transaction.asked += 1
            transaction.due = now + self._policy.pause(transaction.id, transaction.asked)
            self.watch(transaction)
            taken.append(transaction)
        return taken

    def _pending(self, due: int, transaction_id: str) -> Transaction | None:
        """Return the transaction of an entry that is not void, if it is undecided."""
        found = next((known for find in self._find if (known := find(transaction_id))), None)
        return found if found is not None and found.due == due and found.state is State.PENDING else None


def check_request(transaction: Transaction, topic_id: str, partition: int) -> CheckRequest:
    """Return the next check request of a transaction; one to a listener carries the first half, if its body is here."""
    positions, lowest, highest = transaction.seen()
    first = transaction.by_offset()[0][1]
    return CheckRequest(
        transaction.id,
        transaction.service,
        transaction.truth,
        topic_id,
        partition,
        positions,
        lowest,
        highest,
        transaction.unknown_answers + 1,
        transaction.incarnation,
        first.envelope() if transaction.truth is Truth.LISTENER and first.has_body() else None,
    )


def first_half(transaction: Transaction | None, discards: Discards) -> tuple[bytes | None, int] | None:
    """Return the first half's key in the discard topic, None if it is not there, and its offset; None: unreadable."""
    if transaction is None or (transaction.discarded and not discards.is_whole(transaction)):
        return None
    offset = transaction.by_offset()[0][1].offset
    return record_keys(transaction)[offset] if transaction.discarded else None, offset
