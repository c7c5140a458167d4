"""The receipt of a publication: its ids."""

from __future__ import annotations

from dataclasses import dataclass, field

from outbox._receipts.transaction_end import TransactionEnd
from outbox.protocol.identifiers import message_id


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """The result of `publish()`. Two receipts are equal if they are for the same message.

    In auto mode the ids are known at COMMIT, not before: they depend on whether the message goes to Kafka as a half
    message or becomes a row.

    Args:
        draft_id: Id under which the transaction began.
        index: Number of the message in the transaction when it was published.
        topic: The message's real topic.
        end: The end of the local transaction, as observed by this process.
    """

    draft_id: str
    index: int
    topic: str = field(compare=False)
    end: TransactionEnd = field(compare=False, repr=False)

    def __repr__(self) -> str:
        """Return the ids, as far as they are known, and the topic."""
        return f"Receipt({self.end.shown(self.draft_id, self.index)}, topic={self.topic!r})"

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7.

        Raises:
            UsageError: In auto mode: the transaction is not committed yet.
        """
        return self.end.place(self.draft_id, self.index)[0]

    @property
    def position(self) -> int:
        """Index of the message in the transaction, from 0; for a row of the message table its id.

        Raises:
            UsageError: In auto mode: the transaction is not committed yet.
        """
        return self.end.place(self.draft_id, self.index)[1]

    @property
    def message_id(self) -> str:
        """The id that the record on the real topic carries in its header `outbox-id`.

        Raises:
            UsageError: In auto mode: the transaction is not committed yet.
        """
        return message_id(*self.end.place(self.draft_id, self.index))
