"""Who is asked about at once, instead of being parked, because room is short. Pure.

After an outage very many are undecided, and each is asked about again when its own pause is over. Answers then come
scattered, and a scattered answer takes room in the checkpoint string (R20). A service that is answered for
needs no parking: its oldest transactions are asked about first, and the room comes back from below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from relay.half.state.message_transaction import State, Transaction

AT_ONCE = 2_000
"""Transactions of a service that are asked about at a time: more would wait for one another's answers."""


class Patience(NamedTuple):
    """How long answers are waited for.

    Args:
        service: Time for which a service counts as answered for, after an answer, or after room was short for
            the first time, ms.
        transaction: Time that one waits for its own answer, ms: its local transaction may be open.
    """

    service: int
    transaction: int


PATIENT = Patience(5_000, 30_000)
PRESSED = Patience(2_000, 2_000)
"""When there is so little room that the reading stops soon."""


class Urgent:
    """Who waits for an urgent answer. All times are broker time, ms."""

    def __init__(self) -> None:
        self._answered: dict[str, int] = {}  # service -> when
        self._asked: dict[str, int] = {}  # transaction id -> when
        self._waiting: Counter[str] = Counter()  # service -> how many of these
        self._chosen: list[Transaction] = []

    def answered(self, service: str, now: int) -> None:
        """Note that a transaction of a service was decided after a check."""
        self._answered[service] = now

    def look(self, pending: Mapping[str, Transaction], services: Collection[str]) -> None:
        """Forget who waits no longer, before `without_expected_answer`."""
        undecided = [id_ for id_ in self._asked if (found := pending.get(id_)) and found.state is State.PENDING]
        self._asked = {id_: self._asked[id_] for id_ in undecided}
        self._waiting = Counter(pending[id_].service for id_ in undecided)
        self._answered = {service: when for service, when in self._answered.items() if service in services}

    def without_expected_answer(
        self, undecided: Iterable[Transaction], now: int, patience: Patience
    ) -> Iterator[Transaction]:
        """Those of a service, oldest first, about which no answer may be expected; some others are chosen."""
        for transaction in undecided:
            if not _was_due(transaction, now) or not self._is_answered(transaction.service, now, patience):
                yield transaction
            elif transaction.id in self._asked:
                if now - self._asked[transaction.id] >= patience.transaction:
                    yield transaction
            elif self._waiting[transaction.service] < AT_ONCE:
                self._choose(transaction, now)
            else:
                return  # the others' turn comes

    def _is_answered(self, service: str, now: int, patience: Patience) -> bool:
        return now - self._answered.setdefault(service, now) < patience.service

    def _choose(self, transaction: Transaction, now: int) -> None:
        self._asked[transaction.id] = now
        self._waiting[transaction.service] += 1
        self._chosen.append(transaction)

    def take(self) -> list[Transaction]:
        """Return the transactions that were chosen; each is to be asked about now."""
        chosen, self._chosen = self._chosen, []
        return chosen


def _was_due(transaction: Transaction, now: int) -> bool:
    """Whether it may be asked about: before it is due for the first time, its application may still work on it."""
    return transaction.asked > 0 or transaction.due <= now
