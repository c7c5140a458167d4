"""Whether a half is still to be delivered, by what a ledger holds. Pure."""

from __future__ import annotations

from relay.half.ledger.ledger import Ledger


def is_owed(ledger: Ledger, transaction_id: str, offset: int) -> bool:
    """Return whether a half that was read is not settled yet, or is in the discard topic.

    Args:
        transaction_id: Its transaction, of which stragglers may pend when all else of it is settled.
    """
    transaction = ledger.find(transaction_id)
    if transaction is not None:
        return any(half.offset == offset for half in transaction.all_halves())
    return ledger.discards.holds(transaction_id) and any(
        offset == known for _, known in ledger.discards.refused(transaction_id).offsets
    )
