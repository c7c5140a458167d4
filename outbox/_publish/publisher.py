"""What an outbox is made of, as protocols: its publisher, and what a publisher has in a local transaction."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from outbox._publish.session_connection import BindArguments
from outbox.message import Message
from outbox.transaction import Outcome, Receipt


class Publisher(Protocol):
    """Stores messages until the local transaction commits: as rows of the message table, or as halves in Kafka."""

    def publish(self, target: Any, message: Message, bind_arguments: BindArguments | None = None) -> Receipt:
        """Publish a message with the transaction of a session or connection."""

    def publish_many(
        self, target: Any, messages: Iterable[Message], bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        """Publish messages in order, all or none."""

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        """Return the outcome of a transaction; with an async connection only in SQLAlchemy's greenlet."""

    def close(self) -> None:
        """Refuse further publications."""


class Participant(Protocol):
    """What an outbox has in a local transaction.

    `seal()` is called right before COMMIT, and then one of `committed()`, `rolled_back()` and `unknown()`.
    """

    transaction_id: str
    has_ended: bool
    """Whether one of them has noted the end; until then an exception of a signal handler may repeat it (R47)."""

    def __len__(self) -> int:
        """Return the number of messages."""

    def strike(self, keep: int) -> None:
        """Remove all but the first `keep` messages: their SAVEPOINT was rolled back."""

    def seal(self, *, marked: bool = False) -> None:
        """Do what must be done before COMMIT, so that it decides on the messages, too."""

    def committed(self) -> bool:
        """Mark the transaction as committed; return whether it is as durable as configured."""

    def rolled_back(self) -> None:
        """Mark the transaction as rolled back for certain."""

    def unknown(self) -> None:
        """Mark the transaction as in doubt: COMMIT was sent and its outcome is unknown."""


class SessionParticipant(Participant, Protocol):
    """A participant in a transaction of SQLAlchemy, whose events show how it ends."""

    def publish(self, messages: list[Message], *, eager: bool) -> list[Receipt]:
        """Add messages, all or none; with `eager`, send their halves now."""

    def has_row(self, *, presumed: bool) -> bool | None:
        """Return whether it committed, on an idle connection; None if unknown, without a row what is presumed."""


P = TypeVar("P", bound=Publisher)


class Publishing(Generic[P]):
    """What all outboxes have: a publisher, and its end."""

    _publisher: P

    def close(self) -> None:
        self._publisher.close()

    def __enter__(self) -> Self:
        """Use the outbox as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
