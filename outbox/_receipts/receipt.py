"""The receipt of a publication: its ids."""

from __future__ import annotations

from dataclasses import dataclass, field

from outbox._receipts.transaction_end import TransactionEnd
from outbox.protocol.identifiers import message_id


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
