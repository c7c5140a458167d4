"""Which transactions are so old that their rows may have been purged: "no row" says nothing of them (R11). Pure."""

from __future__ import annotations

import uuid

CLOCK_SKEW_MS = 600_000
"""How far the application's clock, which is in the id, may be from the database's."""


def may_be_purged(transaction_id: str, purged_until: int | None) -> bool:
    """Whether the row of a transaction may have been purged.

    Args:
        transaction_id: The transaction.
        purged_until: The newest time of any purged row, ms since 1970; None: none was purged.
    """
    return purged_until is not None and _created_ms(transaction_id) <= purged_until + CLOCK_SKEW_MS


def _created_ms(transaction_id: str) -> int:
    """When a UUIDv7 was made, ms since 1970 by its maker's clock."""
    return int.from_bytes(uuid.UUID(transaction_id).bytes[:6], "big")
