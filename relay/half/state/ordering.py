"""Lanes: the transactions of one (service, ordering key), in the order of their first halves (R28). Pure.

They are linked to each other instead of queued: most keys have a single transaction, and there may be very many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from relay.half.state.message_transaction import Transaction


class Lanes:
    """All lanes of one half partition.

    Args:
        pending: The transactions that are not through yet, by id.
    """

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

    def leave(self, transaction: Transaction) -> Transaction | None:
        """Return a transaction is through.

        Returns:
            The one that is first of its lane instead.
        """
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
