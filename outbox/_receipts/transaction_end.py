"""How a local transaction ended, as far as this process knows; receipts wait for it."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable

Notify = Callable[[], None]


class LocalState(enum.Enum):
    """What this process knows of a local transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


_DEFINITE = frozenset({LocalState.COMMITTED, LocalState.ROLLED_BACK})
_STRUCK = "the SAVEPOINT in which the message was published was rolled back"


class TransactionEnd:
    """The end of one local transaction: open, until somebody saw it committed or rolled back, or lost sight of it.

    Threads may share it. The first definite word stays; an unknown end may become definite later. Its lock is
    reentrant, and is not held while others are told: a pool that collects a lost connection rolls back wherever the
    interpreter happens to be, in the middle of this very code too.
    """

    __slots__ = ("_listeners", "_lock", "_reason", "_state", "_struck")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = LocalState.OPEN
        self._reason = ""
        self._struck: frozenset[int] = frozenset()
        self._listeners: tuple[Notify, ...] = ()

    @property
    def state(self) -> LocalState:
        """What is known of the transaction."""
        return self._state

    def committed(self) -> None:
        """COMMIT was seen to succeed."""
        self._change(LocalState.COMMITTED, "")

    def rolled_back(self, reason: str) -> None:
        """The transaction ended, or will end, without COMMIT.

        Args:
            reason: Half a sentence for people: "the session was rolled back".
        """
        self._change(LocalState.ROLLED_BACK, reason)

    def unknown(self) -> None:
        """COMMIT was sent and nobody saw its outcome, or its durability is in doubt (R5, R6)."""
        self._change(LocalState.UNKNOWN, "")

    def strike(self, positions: Iterable[int]) -> None:
        """Messages whose SAVEPOINT was rolled back: they are never delivered, whatever becomes of the transaction."""
        with self._lock:
            self._struck = self._struck.union(positions)
        self._tell()

    def why_never(self, position: int) -> str | None:
        """Why a message will never be delivered, if this process knows that; None if it may be.

        Args:
            position: Place of the message in the transaction.
        """
        if position in self._struck:
            return _STRUCK
        return self._reason if self._state is LocalState.ROLLED_BACK else None

    def listen(self, notify: Notify) -> None:
        """Call a function, from any thread, whenever something new is known. It must neither wait nor fail."""
        with self._lock:
            self._listeners = (*self._listeners, notify)

    def stop_listening(self, notify: Notify) -> None:
        """Call it no longer; nothing happens if it was never called."""
        with self._lock:
            self._listeners = tuple(listener for listener in self._listeners if listener != notify)

    def _change(self, state: LocalState, reason: str) -> None:
        with self._lock:
            if self._state in _DEFINITE:
                return
            self._state, self._reason = state, reason
        self._tell()

    def _tell(self) -> None:
        for notify in self._listeners:
            notify()
