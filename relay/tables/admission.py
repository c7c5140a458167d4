"""Which transactions of a window of rows are delivered now, which wait, and which cannot be delivered. Pure.

A transaction waits while one of its real topics cannot take messages, and while an earlier transaction with one of its
ordering keys waits. What waits stays in its table, and only its ids are kept here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outbox.protocol.names import Channel
from relay.batching.preflight import inspect
from relay.batching.topic_gate import Gate
from relay.state.message_transaction import Finding, Transaction
from relay.tables.rows import OrderingKey, ids, keyed_halves, ordering_keys

WAITING_MAX = 100_000
"""Rows that may wait. Above it, the oldest wait no longer, and pre-flight decides on them."""


@dataclass(slots=True)
class Admitted:
    """The result for one window.

    Args:
        ready: Transactions to deliver, in the order of their first rows.
        refused: Transactions that cannot be delivered, and why.
    """

    ready: list[Transaction] = field(default_factory=list)
    refused: list[tuple[Transaction, Finding]] = field(default_factory=list)


class Admission:
    """What waits of one table source.

    Args:
        gate: What is known of real topics.
        channel: The channel, whose own topics can never be targets.
        id_bytes: By how much the longest id of a row may be longer than a number of 64 bits, bytes.
    """

    def __init__(self, gate: Gate, channel: Channel, id_bytes: int = 0) -> None:
        self._gate = gate
        self._channel = channel
        self._id_bytes = id_bytes
        self._waiting: dict[tuple[str, str], str] = {}  # topic, or "" behind another, by transaction id and group
        self._waiting_ids: list[int] = []
        self._blocked: set[OrderingKey] = set()
        self._given_up: set[tuple[str, str]] = set()

    # --- what waits

    def waiting(self) -> Sequence[int]:
        """Return the ids of the rows that wait; they are left out of the next window."""
        return self._waiting_ids

    def topics(self, among: Collection[str]) -> set[str]:
        """Return those of some topics for which a transaction waits."""
        return set(self._waiting.values()) & set(among)

    def release(self, topics: Iterable[str], *, give_up: bool = False) -> None:
        """Let the next window hold what waits for real topics, and all that waits behind it.

        Args:
            topics: The topics.
            give_up: The transactions wait for no topic any more, and pre-flight decides on them.
        """
        wanted = set(topics)
        released = [which for which, topic in self._waiting.items() if topic in wanted]
        if give_up:
            self._given_up.update(released)
        if released:
            self.forget()

    def forget(self) -> None:
        """Let the next window hold all that waits."""
        self._waiting.clear()
        self._waiting_ids.clear()
        self._blocked.clear()

    def release_crowding(self) -> None:
        """Give up the older half of those that wait for topics, if more rows wait than may."""
        if len(self._waiting_ids) > WAITING_MAX:
            first = [which for which, topic in self._waiting.items() if topic]
            self._given_up.update(first[: len(first) // 2 + 1])
            self.forget()

    # --- a window

    def take(self, window: Sequence[Transaction], beyond: Collection[Transaction], now: int) -> Admitted:
        """Decide on the transactions of a window.

        Args:
            window: Transactions in the order of their first rows.
            beyond: Those of them that have rows behind the window: they are not delivered in part.
            now: The broker's time, ms.
        """
        whole = [transaction for transaction in window if transaction not in beyond]
        closed = {found: topic for found in whole if (topic := self._why_waiting(found)) is not None}
        waiting = behind(whole, closed)
        for transaction in whole:
            if transaction in waiting:
                self._wait(transaction, closed.get(transaction, ""))
        left = behind(window, {*waiting, *beyond}) if waiting or beyond else set()
        admitted = Admitted()
        for transaction in whole:
            if transaction not in left:
                self._decide(transaction, admitted, now)
        return admitted

    def _why_waiting(self, transaction: Transaction) -> str | None:
        """Return the real topic for which a transaction waits, empty if it waits behind another; None: it may go."""
        return "" if ordering_keys(transaction) & self._blocked else self._closed_to(transaction)

    def _closed_to(self, transaction: Transaction) -> str | None:
        transaction.given_up = _which(transaction) in self._given_up
        return self._gate.closed_to(transaction)

    def _wait(self, transaction: Transaction, topic: str) -> None:
        self._waiting[_which(transaction)] = topic
        self._waiting_ids += ids([transaction])
        self._blocked |= ordering_keys(transaction)

    def _decide(self, transaction: Transaction, admitted: Admitted, now: int) -> None:
        gate = self._gate
        # Its origin header holds the source's name and a row's id; a late header, which counts, is never written.
        more = len(str(gate.owner)) + self._id_bytes
        finding = inspect(transaction, gate.topics, self._channel, now, gate.allowed, more)
        if finding is None:
            admitted.ready.append(transaction)
        else:
            admitted.refused.append((transaction, finding))

    def settled(self, admitted: Admitted) -> None:
        """Forget the transactions that were delivered or discarded."""
        if self._given_up:
            gone = [*admitted.ready, *(transaction for transaction, _ in admitted.refused)]
            self._given_up.difference_update(map(_which, gone))


def behind(window: Sequence[Transaction], stopped: Iterable[Transaction]) -> set[Transaction]:
    """Return transactions that cannot go, and all that have a row behind one of theirs with the same ordering key.

    Rows of transactions interleave: a transaction that begins earlier may have a later row.

    Args:
        window: Transactions.
        stopped: Those of them that cannot go.
    """
    found = set(stopped)
    first: dict[OrderingKey, int] = {}  # the lowest id of a row that stays
    added: Collection[Transaction] = found
    while added:
        for transaction in added:
            for key, half in keyed_halves(transaction):
                first[key] = min(half.offset, first.get(key, half.offset))
        added = [one for one in window if one not in found and _is_behind(one, first)]
        found.update(added)
    return found


def _is_behind(transaction: Transaction, first: Mapping[OrderingKey, int]) -> bool:
    return any(half.offset > first.get(key, half.offset) for key, half in keyed_halves(transaction))


def _which(transaction: Transaction) -> tuple[str, str]:
    return transaction.id, transaction.group
