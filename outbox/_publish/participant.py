"""What a local transaction asks of each outbox that takes part in it; the real one is `outbox._publish.seal`."""

from __future__ import annotations

from typing import Protocol

from outbox._publish.draft import Draft
from outbox._publish.local_connection import LocalConnection
from outbox._receipts.receipt import Receipt
from outbox.message import Message


class Participant(Protocol):
    """The part that one outbox takes in one local transaction.

    It is published to, then sealed right before COMMIT, then told the end: one of `committed()`, `rolled_back()` and
    `unknown()`.
    """

    draft: Draft

    def publish(self, message: Message, *, early: bool) -> Receipt:
        """Add a message; with `early`, its half goes out now."""

    def acknowledged_half(self) -> tuple[int, int]:
        """Wait until the early half that was sent last is stored; half partition and offset."""

    def seal(self, *, marked: bool = False) -> None:
        """Make sure that COMMIT will decide on the messages, too."""

    def has_row(self, *, presumed: bool) -> bool | None:
        """Whether the transaction is seen to be committed, on an idle connection; None if that cannot be told.

        Args:
            presumed: What to say if it keeps no row.
        """

    def committed(self) -> bool:
        """COMMIT was seen to succeed; whether that is as durable as it was asked to be."""

    def rolled_back(self, reason: str) -> None:
        """It is certain that nothing was, or will be, committed; the reason is half a sentence for people."""

    def unknown(self) -> None:
        """Nobody knows how it ended."""


class Starter(Protocol):
    """Starts an outbox's part in local transactions."""

    def connection(self, driver: object) -> LocalConnection:
        """The connection of a driver, as this outbox needs it."""

    def start(self, connection: LocalConnection) -> Participant:
        """A new part in the connection's transaction, with a fresh transaction id."""
