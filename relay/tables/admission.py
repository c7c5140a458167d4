"""Which transactions of a window of rows are delivered now, which wait, and which cannot be delivered. Pure.

A transaction waits while one of its real topics cannot take messages, and while an earlier transaction with one of its
ordering keys waits. What waits stays in its table, and only its ids are kept here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from outbox._rules.waiting_rows import OrderingKey, behind_those
from outbox.protocol.names import Channel
from relay.batching.preflight import LookAgain, inspect, refused
from relay.batching.topic_gate import Gate
from relay.state.message_transaction import Finding
from relay.tables.rows import RowTransaction, ids, keyed_halves, ordering_keys

WAITING_MAX = 100_000
"""Rows that may wait for topics. Above it, those that wait longest wait no longer, and pre-flight decides on them."""

Which = tuple[str, str]
"""Id and service of a transaction."""


@dataclass(slots=True)
class Admitted:
    """The result for one window.

    Args:
        ready: Transactions to deliver, in the order of their first rows.
    """

    ready: list[RowTransaction] = field(default_factory=list)
    refused: list[tuple[RowTransaction, Finding]] = field(default_factory=list)


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
        self._waiting: dict[Which, str] = {}  # topic, or "" behind another, by transaction id and service
        self._waiting_ids: list[int] = []
        self._rows: Counter[tuple[str, str]] = Counter()  # that wait, by topic and service
        self._blocked: set[OrderingKey] = set()
        self._given_up: set[Which] = set()

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

    def forget(self) -> None:
        """Let the next window hold all that waits."""
        self._waiting.clear()
        self._waiting_ids.clear()
        self._rows.clear()
        self._blocked.clear()

    def release_crowding(self) -> None:
        """Give up the older half of those that wait for topics, if more rows wait than may."""
        if len(self._waiting_ids) > WAITING_MAX:
            first = [one for one, topic in self._waiting.items() if topic]
            self._given_up.update(first[: len(first) // 2 + 1])
            self.forget()

    # --- a window

    def take(
        self,
        window: Sequence[RowTransaction],
        beyond: Collection[RowTransaction],
        now: int,
        look_again: LookAgain = set,
    ) -> Admitted:
        """Decide on the transactions of a window.

        Args:
            window: Transactions in the order of their first rows.
            beyond: Those of them that have rows behind the window: they are not delivered in part.
            now: The broker's time, ms.
            look_again: Has topics described again before something is refused for them.
        """
        whole = [transaction for transaction in window if transaction not in beyond]
        closed = {found: topic for found in whole if (topic := self._why_waiting(found)) is not None}
        waiting = behind(whole, closed)
        for transaction in whole:
            if transaction in waiting:
                self._wait(transaction, closed.get(transaction, ""))
        left = behind(window, {*waiting, *beyond}) if waiting or beyond else set()
        going = [transaction for transaction in whole if transaction not in left]
        findings = refused(going, lambda transaction: self._inspect(transaction, now), look_again)
        return Admitted([found for found in going if found not in findings], list(findings.items()))

    def _why_waiting(self, transaction: RowTransaction) -> str | None:
        """Return the real topic for which a transaction waits, empty if it waits behind another; None: it may go."""
        if ordering_keys(transaction) & self._blocked:
            return ""
        transaction.given_up = which(transaction) in self._given_up
        return self._gate.closed_to(transaction)

    def _wait(self, transaction: RowTransaction, topic: str) -> None:
        rows = ids([transaction])
        self._waiting[which(transaction)] = topic
        self._waiting_ids += rows
        self._rows[topic, transaction.service] += len(rows)
        self._blocked |= ordering_keys(transaction)

    def _inspect(self, transaction: RowTransaction, now: int) -> Finding | None:
        gate = self._gate
        # Its origin header holds the source's name and a row's id; a late header, which counts, is never written.
        more = len(str(gate.owner)) + self._origin_bytes
        return inspect(transaction, gate.topics, self._channel, now, gate.allowed, more)

    def settled(self, admitted: Admitted) -> None:
        """Forget the transactions that were delivered or discarded."""
        if self._given_up:
            gone = [*admitted.ready, *(transaction for transaction, _ in admitted.refused)]
            self._given_up.difference_update(map(which, gone))


def which(transaction: RowTransaction) -> Which:
    """Return what identifies a transaction; rows of several services in one local transaction are several."""
    return transaction.id, transaction.service


def behind(window: Sequence[RowTransaction], stopped: Iterable[RowTransaction]) -> set[RowTransaction]:
    """Return transactions that cannot go, and all that have a row behind one of theirs with the same ordering key."""
    return behind_those(window, stopped, _keyed_ids)


def _keyed_ids(transaction: RowTransaction) -> Iterator[tuple[OrderingKey, int]]:
    return ((key, half.offset) for key, half in keyed_halves(transaction))
