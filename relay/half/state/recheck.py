"""Who is asked about at once, instead of being parked, because room is short. Pure.

After an outage very many are undecided, and each is asked about again when its own pause is over. Answers then come
scattered, and a scattered answer takes room in the checkpoint string (R20). A producer group that is answered for
needs no parking: its oldest transactions are asked about first, and the room comes back from below.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from relay.half.state.message_transaction import State, Transaction

AT_ONCE = 2_000
"""Transactions of a producer group that are asked about at a time: more would wait for one another's answers."""


class Patience(NamedTuple):
    """How long answers are waited for.

    Args:
        group: Time for which a producer group counts as answered for, after an answer, or after room was short for
            the first time, ms.
        transaction: Time that one waits for its own answer, ms: its local transaction may be open.
    """

    group: int
    transaction: int


PATIENT = Patience(5_000, 30_000)
PRESSED = Patience(2_000, 2_000)
"""When there is so little room that the reading stops soon."""


class Urgent:
    """Who waits for an urgent answer. All times are broker time, ms."""

    def __init__(self) -> None:
        self._answered: dict[str, int] = {}  # producer group -> when
        self._asked: dict[str, int] = {}  # transaction id -> when
        self._waiting: Counter[str] = Counter()  # producer group -> how many of these
        self._chosen: list[Transaction] = []

    def answered(self, group: str, now: int) -> None:
        """Note that a transaction of a producer group was decided after a check."""
        self._answered[group] = now

    def look(self, pending: Mapping[str, Transaction], groups: Collection[str]) -> None:
        """Forget who waits no longer, before `without_expected_answer`."""
        undecided = [id_ for id_ in self._asked if (found := pending.get(id_)) and found.state is State.PENDING]
        self._asked = {id_: self._asked[id_] for id_ in undecided}
        self._waiting = Counter(pending[id_].group for id_ in undecided)
        self._answered = {group: when for group, when in self._answered.items() if group in groups}

    def without_expected_answer(
        self, undecided: Iterable[Transaction], now: int, patience: Patience
    ) -> Iterator[Transaction]:
        """Those of a producer group about which no answer may be expected; of the others, some are chosen to be asked.

        Args:
            undecided: Undecided transactions of one group, the oldest first.
            now: Broker time, ms.
        """
        for transaction in undecided:
            if not _was_due(transaction, now) or not self._is_answered(transaction.group, now, patience):
                yield transaction
            elif transaction.id in self._asked:
                if now - self._asked[transaction.id] >= patience.transaction:
                    yield transaction
            elif self._waiting[transaction.group] < AT_ONCE:
                self._choose(transaction, now)
            else:
                return  # the others' turn comes

    def _is_answered(self, group: str, now: int, patience: Patience) -> bool:
        return now - self._answered.setdefault(group, now) < patience.group

    def _choose(self, transaction: Transaction, now: int) -> None:
        self._asked[transaction.id] = now
        self._waiting[transaction.group] += 1
        self._chosen.append(transaction)

    def take(self) -> list[Transaction]:
        """Return the transactions that were chosen; each is to be asked about now."""
        chosen, self._chosen = self._chosen, []
        return chosen


def _was_due(transaction: Transaction, now: int) -> bool:
    """Whether it may be asked about: before it is due for the first time, its application may still work on it."""
    return transaction.asked > 0 or transaction.due <= now
