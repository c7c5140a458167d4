"""The draft of a transaction in auto mode, whose ids depend on the way that its messages take."""

from __future__ import annotations

from collections.abc import Mapping

from outbox._publish.draft import Draft
from outbox._receipts.transaction_end import LocalState, TransactionEnd
from outbox.errors import UsageError


class AutoEnd(TransactionEnd):
    """The end of a local transaction that stores the final ids of its messages."""

    __slots__ = ("_positions", "_transaction_id")

    def __init__(self) -> None:
        super().__init__()
        self._transaction_id = ""
        self._positions: Mapping[int, int] | None = None

    def assign(self, transaction_id: str, positions: Mapping[int, int] | None) -> None:
        """Store the final ids.

        Args:
            transaction_id: The transaction's id.
            positions: Position of each message by its number in the draft; None: they are the same.
        """
        self._positions = positions
        self._transaction_id = transaction_id

    def place(self, draft_id: str, index: int) -> tuple[str, int]:
        """Return the final ids; those of its publication for a message that is never delivered.

        Raises:
            UsageError: They are not known yet.
        """
        if self.why_never(index) is not None:
            return draft_id, index
        return self.final_id(draft_id), index if self._positions is None else self._positions[index]

    def final_id(self, draft_id: str) -> str:
        """Return the final id of the transaction; the one with which it began if it was rolled back.

        Raises:
            UsageError: It is not known yet.
        """
        if self.state is LocalState.ROLLED_BACK:
            return draft_id
        if not self._transaction_id:
            raise UsageError(
                "In auto mode a transaction and its messages have no ids before COMMIT, which decides whether they go "
                "to Kafka or become rows. Read the ids after COMMIT."
            )
        return self._transaction_id

    def shown(self, draft_id: str, index: int) -> str:
        """Return the ids of a message for people, as far as they are known."""
        try:
            return super().shown(draft_id, index)
        except UsageError:
            return "not committed"


class AutoDraft(Draft):
    """The messages of one transaction before the seal.

    Args:
        transaction_id: The id of its half messages.
    """

    def __init__(self, transaction_id: str) -> None:
        super().__init__(transaction_id)
        self.end: AutoEnd = AutoEnd()

    @property
    def public_id(self) -> str:
        """The final id of the transaction.

        Raises:
            UsageError: It is not known yet.
        """
        return self.end.final_id(self.transaction_id)

    def assign(self, transaction_id: str, positions: Mapping[int, int] | None = None) -> None:
        """Assign the final ids; as `AutoEnd.assign()`."""
        self.transaction_id = transaction_id
        self.end.assign(transaction_id, positions)
