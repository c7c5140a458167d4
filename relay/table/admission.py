"""Which transactions of a window of rows are delivered now, which wait, and which cannot be delivered. Pure.

A transaction waits while one of its real topics cannot take messages, and while an earlier transaction with one of its
ordering keys waits. What waits stays in its table, and only its ids are kept here.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from outbox._rules.row_order import OrderingKey, behind_those
from outbox.protocol.names import Channel
from relay.delivery.rules.outgoing import Finding
from relay.delivery.rules.preflight import LookAgain, inspect, refused
from relay.delivery.rules.topic_gate import Gate
from relay.table.plain_window import is_plain
from relay.table.row_transactions import Refused, RowTransaction, checked_target, transactions
from relay.table.rows import Row, RowId, target_of, which

WAITING_MAX = 100_000
"""Rows that may wait for topics. Above it, those that wait longest wait no longer, and pre-flight decides on them."""


@dataclass(slots=True)
class Admitted:
    """The result for one window.

    Args:
        rows: Rows to deliver, in the order of their ids: whole transactions.
    """

    rows: Sequence[Row]
    refused: Refused = ()


class Admission:
    """What waits of one table source.

    Args:
        channel: The channel, whose own topics can never be targets.
        origin_bytes: By how much an origin header may be longer than the owner's name with a 64-bit number, bytes.
    """

    def __init__(self, gate: Gate, channel: Channel, origin_bytes: int = 0) -> None:
        self._gate = gate
        self._channel = channel
        self._origin_bytes = origin_bytes
        self._waiting: dict[tuple[str, str], str] = {}  # topic, or "" behind another, by transaction id and service
        self._waiting_ids: list[int] = []
        self._rows: Counter[tuple[str, str]] = Counter()  # that wait, by topic and service
        self._blocked: set[OrderingKey] = set()
        self._given_up: set[tuple[str, str]] = set()
        self._released: int | None = None

    # --- what waits

    def waiting(self) -> Sequence[int]:
        """Return the ids of the rows that wait; they are left out of the next window."""
        return self._waiting_ids

    def by_topic(self) -> dict[tuple[str, str], int]:
        """Return how many rows wait for real topics, by topic and service; without those behind others."""
        return {place: rows for place, rows in self._rows.items() if place[0]}

    def topics(self, among: Collection[str]) -> set[str]:
        """Return those of some topics for which a transaction waits."""
        return set(self._waiting.values()) & set(among)

    def release(self, topics: Iterable[str], *, give_up: bool = False) -> None:
        """Let the next window hold what waits for real topics, and all that waits behind it.

        Args:
            give_up: The transactions wait for no topic any more, and pre-flight decides on them.
        """
        wanted = set(topics)
        released = [one for one, topic in self._waiting.items() if topic in wanted]
        if give_up:
            self._given_up.update(released)
        if released:
            self.forget()

    def take_released(self) -> int | None:
        """Return the lowest id of the rows that wait no longer since the last call; None: all wait.

        A window that was read lacks them.
        """
        released, self._released = self._released, None
        return released

    def forget(self) -> None:
        """Let the next window hold all that waits."""
        lowest = min(self._waiting_ids, default=None)
        self._released = lowest if self._released is None else min(self._released, lowest or self._released)
        for kept in (self._waiting, self._waiting_ids, self._rows, self._blocked):
            kept.clear()

    def release_crowding(self) -> None:
        """Give up the older half of those that wait for topics, if more rows wait than may."""
        if len(self._waiting_ids) > WAITING_MAX:
            first = [one for one, topic in self._waiting.items() if topic]
            self._given_up.update(first[: len(first) // 2 + 1])
            self.forget()

    # --- a window

    def look_up(self, rows: Iterable[Row]) -> None:
        """Have the gate name those topics of a window of which nothing is known."""
        for service, topic, partition in set(map(target_of, rows)):
            if (target := checked_target(service, topic, partition)) is not None:
                self._gate.need(service, target)

    def take(self, rows: Sequence[Row], now: int, look_again: LookAgain = set) -> Admitted:
        """Decide on the rows of a window.

        Args:
            rows: Whole transactions, in the order of the ids.
            now: The broker's time, ms.
            look_again: Has topics described again before something is refused for them.
        """
        if not rows or self._is_plain(rows, now):
            return Admitted(rows)
        window = transactions(rows)
        closed = {found: topic for found in window if (topic := self._why_waiting(found)) is not None}
        waiting = behind_those(window, closed, RowTransaction.keyed_ids)
        for transaction in window:
            if transaction in waiting:
                self._wait(transaction, closed.get(transaction, ""))
        going = [transaction for transaction in window if transaction not in waiting]
        findings = refused(going, lambda transaction: self._inspect(transaction, now), look_again)
        self._given_up.difference_update(map(_name, going))
        admitted = {found.of for found in going if found not in findings}
        return Admitted([row for row in rows if which(row) in admitted], list(findings.items()))

    def _is_plain(self, rows: Sequence[Row], now: int) -> bool:
        """Return whether nothing in a window needs a decision of its own; rows of a foreign table always do."""
        if self._waiting or self._given_up or isinstance(rows[0][1], RowId):
            return False
        return is_plain(rows, self._gate.open_to, now, self._more())

    def _more(self) -> int:
        """Return how much longer an origin header may be than that of a half: it has the source's name and a row's id.

        A late header, which counts for a half, is never written.
        """
        return len(str(self._gate.owner)) + self._origin_bytes

    def _why_waiting(self, transaction: RowTransaction) -> str | None:
        """Return the real topic for which a transaction waits, empty if it waits behind another; None: it may go."""
        if transaction.ordering_keys() & self._blocked:
            return ""
        transaction.given_up = _name(transaction) in self._given_up
        return self._gate.closed_to(transaction)

    def _wait(self, transaction: RowTransaction, topic: str) -> None:
        rows = transaction.ids()
        self._waiting[_name(transaction)] = topic
        self._waiting_ids += rows
        self._rows[topic, transaction.service] += len(rows)
        self._blocked |= transaction.ordering_keys()

    def _inspect(self, transaction: RowTransaction, now: int) -> Finding | None:
        gate = self._gate
        return inspect(transaction, gate.topics, self._channel, now, gate.allowed, self._more())


def _name(transaction: RowTransaction) -> tuple[str, str]:
    """Return what a transaction is known by when it is read again: id and service."""
    return transaction.id, transaction.service
