"""The bodies of pending halves: kept while they are young and few, let go then, and fetched again when needed. Pure.

What pends for long costs memory by its number, not by its size.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction


@dataclass(frozen=True, slots=True)
class BodyPolicy:
    """When bodies are let go, in one half partition.

    Args:
        age: Of a transaction's first half, ms; most are decided long before.
        bytes: Of all bodies, about; beyond it those of the oldest go first.
    """

    age: int = 30_000
    bytes: int = 16_777_216


KEEP = BodyPolicy()


class Bodies:
    """The bodies in memory."""

    def __init__(self, policy: BodyPolicy) -> None:
        self._policy = policy
        self._held: dict[str, Transaction] = {}  # the oldest first
        self._bytes = 0

    def added(self, transaction: Transaction, half: Half) -> None:
        """Add a half of a pending transaction."""
        size = half.size()
        if not transaction.held_bytes:
            self._held[transaction.id] = transaction
        transaction.held_bytes += size
        self._bytes += size

    def settled(self, transaction: Transaction) -> None:
        """Remove a transaction that pends no longer."""
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
