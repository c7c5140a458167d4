"""The participant of an outbox in a local transaction, as a protocol; `outbox._publish.seal` implements it."""

from __future__ import annotations

from typing import Protocol

from outbox._publish.draft import Draft
from outbox._publish.local_connection import LocalConnection
from outbox._receipts import Receipt
from outbox.message import Message


class Participant(Protocol):
    """One outbox's participant in one local transaction.

    `publish()` is called for each message, `seal()` right before COMMIT, and then one of `committed()`, `rolled_back()`
    and `unknown()`.
    """

    draft: Draft
    writes_rows: bool
    """Whether `publish()` writes to the database at once, so that Postgres removes what is rolled back."""

    def publish(self, message: Message, *, eager: bool) -> Receipt:
        """Add a message; with `eager`, send its half now."""

    def acknowledged_half(self) -> tuple[int, int]:
        """Wait until the last eager half is stored; return its half partition and offset."""

    def seal(self, *, marked: bool = False) -> None:
        """Send the halves and insert the row, so that COMMIT decides on the messages too."""

    def has_row(self, *, presumed: bool) -> bool | None:
        """Return whether the transaction committed, on an idle connection; None if unknown.

        Args:
            presumed: The answer of a participant without a row.
        """

    def committed(self) -> bool:
        """Mark the transaction as committed; return whether it is as durable as configured."""

    def rolled_back(self, reason: str) -> None:
        """Mark the transaction as rolled back for certain; the reason is a clause for error messages."""

    def unknown(self) -> None:
        """Mark the transaction as in doubt: COMMIT was sent and its outcome is unknown."""


class Starter(Protocol):
    """Creates an outbox's participants in local transactions."""

    def connection(self, driver: object) -> LocalConnection:
        """Wrap a driver's connection."""

    def start(self, connection: LocalConnection) -> Participant:
        """Create a participant in the connection's transaction, with a new transaction id."""
