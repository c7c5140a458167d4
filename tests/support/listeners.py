"""Listeners for the tests."""

import threading
from typing import Any

from outbox.listener import HalfMessage, LocalTransactionState, TransactionCheck, TransactionListener

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN


class Scripted(TransactionListener):
    """Does as it is told by a state, or a function of the message or the check, and remembers what it was given."""

    def __init__(self, execute: object = None, check: object = None) -> None:
        self._execute = execute
        self._check = check
        self._lock = threading.Lock()
        self.executed: list[tuple[HalfMessage, Any]] = []
        self.checked: list[TransactionCheck] = []

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> Any:
        with self._lock:
            self.executed.append((message, arg))
        return _run(self._execute, message)

    def check_local_transaction(self, check: TransactionCheck) -> Any:
        with self._lock:
            self.checked.append(check)
        return _run(self._check, check)

    def was_asked_about(self, transaction_id: str) -> bool:
        with self._lock:
            return any(check.transaction_id == transaction_id for check in self.checked)


def _run(script: Any, argument: object) -> Any:
    return script(argument) if callable(script) else script
