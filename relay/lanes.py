"""Lanes: the transactions of one (producer group, ordering key), in the order of their first halves (R28). Pure.

They are linked to each other instead of queued: most keys have a single transaction, and there may be very many.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.transaction import Lane, Transaction


class Lanes:
    """All lanes of one half partition.

    Args:
        is_pending: Whether a transaction is not through yet.
    """

    def __init__(self, is_pending: Callable[[Transaction], bool]) -> None:
        self._is_pending = is_pending
        self._last: dict[Lane, Transaction] = {}

    def join(self, transaction: Transaction) -> None:
        """A transaction stands behind all others of its lane, if it keeps an order at all."""
        if transaction.lane is None:
            return
        last = self._last.get(transaction.lane)
        if last is not None:
            last.behind, transaction.is_first = transaction, False
        self._last[transaction.lane] = transaction

    def leave(self, transaction: Transaction) -> Transaction | None:
        """A transaction is through.

        Returns:
            The one that is first of its lane instead.
        """
        if transaction.lane is None or not transaction.is_first:
            return None  # whoever is before it passes it over
        follower = transaction.behind
        while follower is not None and not self._is_pending(follower):
            follower = follower.behind
        if follower is None:
            del self._last[transaction.lane]
        else:
            follower.is_first = True
        return follower
