"""What an outbox gives back: receipts, open transactions, and the outcome of one."""

import enum
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from outbox.errors import UsageError
from outbox.message import Message
from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import check_uuid, message_id


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """The result of `publish()`. Two receipts are equal if they are for the same message.

    Args:
        transaction_id: Id of the transaction, a UUIDv7.
        position: Index of the message in the transaction, from 0; for a row of the message table its id.
        topic: The message's real topic.
    """

    transaction_id: str
    position: int
    topic: str = field(compare=False)

    def __repr__(self) -> str:
        """Return the ids and the topic."""
        return f"Receipt(transaction_id={self.transaction_id!r}, position={self.position}, topic={self.topic!r})"

    @property
    def message_id(self) -> str:
        """The id that the record on the real topic carries in its header `outbox-id`."""
        return message_id(self.transaction_id, self.position)


class Outcome(enum.StrEnum):
    """The outcome of a local transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    OPEN = "open"
    TOO_OLD = "too old"


def check_transaction_id(transaction_id: str) -> None:
    """Check the form of a transaction id."""
    try:
        check_uuid(transaction_id)
    except ProtocolError as error:
        raise UsageError(f"{transaction_id!r} is not a transaction id ({error}). Give the id of a receipt.") from None


class HalfTransaction:
    """An open local transaction of half mode; `HalfOutbox.transaction()` makes it.

    Args:
        publish: Publishes a message with it, eagerly or not.
        savepoint: Opens a SAVEPOINT of it.
        transaction_id: Its id, a UUIDv7.
        eager: Whether halves are sent at `publish()`, not at COMMIT, by default.
    """

    def __init__(
        self,
        publish: Callable[[Message, bool], Receipt],
        savepoint: Callable[[], AbstractContextManager[None]],
        transaction_id: str,
        *,
        eager: bool,
    ) -> None:
        self.is_open = True
        self.transaction_id = transaction_id
        self._publish = publish
        self._savepoint = savepoint
        self._eager = eager

    def savepoint(self) -> AbstractContextManager[None]:
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""
        return self._savepoint()

    def publish(self, message: Message, *, eager: bool | None = None) -> Receipt:
        """Publish a message with this transaction.

        Args:
            eager: Send the half now, not at COMMIT; None: the `eager` of the transaction.

        Raises:
            MessageRefused: The message cannot be published; nothing was written.
            UsageError: The transaction has ended, or a block of psycopg's own `transaction()` is open inside it.
            PublishFailed: Kafka does not answer.
        """
        if not self.is_open:
            raise UsageError("This transaction has ended. Publish inside the with block.")
        return self._publish(message, self._eager if eager is None else eager)
