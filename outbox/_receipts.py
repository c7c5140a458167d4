"""What `publish()` returns: the receipt of a message, and the end of its local transaction as this process sees it."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from outbox.protocol.identifiers import message_id


class LocalState(enum.Enum):
    """State of a local transaction, as observed by this process."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


_DEFINITE = frozenset({LocalState.COMMITTED, LocalState.ROLLED_BACK})
_STRUCK = "the SAVEPOINT in which the message was published was rolled back"


class TransactionEnd:
    """The end of one local transaction: open, then committed, rolled back, or unknown.

    Threads may share it. The first definite state is final; an unknown end may become definite later. The lock is
    reentrant: when a pool collects a lost connection, its rollback runs wherever the interpreter happens to be, also
    inside this code.
    """

    __slots__ = ("_lock", "_reason", "_state", "_struck")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = LocalState.OPEN
        self._reason = ""
        self._struck: frozenset[int] = frozenset()

    @property
    def state(self) -> LocalState:
        """The observed state of the transaction."""
        return self._state

    def committed(self) -> None:
        """Mark the transaction as committed: COMMIT succeeded."""
        self._change(LocalState.COMMITTED, "")

    def rolled_back(self, reason: str) -> None:
        """Mark the transaction as rolled back: it ended, or will end, without COMMIT.

        Args:
            reason: A clause for error messages, such as "the session was rolled back".
        """
        self._change(LocalState.ROLLED_BACK, reason)

    def unknown(self) -> None:
        """Mark the transaction as in doubt: COMMIT was sent and its outcome or durability is unknown (R5, R6)."""
        self._change(LocalState.UNKNOWN, "")

    def strike(self, positions: Iterable[int]) -> None:
        """Mark messages as never delivered, because their SAVEPOINT was rolled back."""
        with self._lock:
            self._struck = self._struck.union(positions)

    def why_never(self, position: int) -> str | None:
        """Return why a message will never be delivered; None if it may be."""
        if position in self._struck:
            return _STRUCK
        return self._reason if self._state is LocalState.ROLLED_BACK else None

    def _change(self, state: LocalState, reason: str) -> None:
        with self._lock:
            if self._state in _DEFINITE:
                return
            self._state, self._reason = state, reason


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """The result of `publish()`. Two receipts are equal if they are for the same message.

    Args:
        transaction_id: Id of the transaction, a UUIDv7.
        position: Index of the message in the transaction, from 0; for a row of the message table its id.
        topic: The message's real topic.
        end: The end of the local transaction, as observed by this process.
    """

    transaction_id: str
    position: int
    topic: str = field(compare=False)
    end: TransactionEnd = field(compare=False, repr=False)

    def __repr__(self) -> str:
        """Return the ids and the topic."""
        return f"Receipt(transaction_id={self.transaction_id!r}, position={self.position}, topic={self.topic!r})"

    @property
    def message_id(self) -> str:
        """The id that the record on the real topic carries in its header `outbox-id`."""
        return message_id(self.transaction_id, self.position)
