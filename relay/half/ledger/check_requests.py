"""Check requests for undecided transactions, and the half that a listener needs to judge one. Pure."""

from __future__ import annotations

from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from relay.half.state.discard_index import Discards, record_keys
from relay.half.state.message_transaction import Transaction


def check_request(transaction: Transaction, topic_id: str, partition: int) -> CheckRequest:
    """Return the next check request of a transaction; one to a listener carries the first half, if its body is here."""
    positions, lowest, highest = transaction.seen()
    first = transaction.by_offset()[0][1]
    return CheckRequest(
        transaction.id,
        transaction.service,
        transaction.truth,
        topic_id,
        partition,
        positions,
        lowest,
        highest,
        transaction.unknown_answers + 1,
        transaction.incarnation,
        first.envelope() if transaction.truth is Truth.LISTENER and first.has_body() else None,
    )


def first_half(transaction: Transaction | None, discards: Discards) -> tuple[bytes | None, int] | None:
    """Return where the first half of an undecided transaction is: its key in the discard topic, and its half offset.

    Args:
        transaction: The transaction; None if it is settled.

    Returns:
        The key is None for a half that is not in the discard topic. None: it cannot be read now.
    """
    if transaction is None or (transaction.discarded and not discards.is_whole(transaction)):
        return None
    offset = transaction.by_offset()[0][1].offset
    return record_keys(transaction)[offset] if transaction.discarded else None, offset
