"""Which transactions are so old that their rows may have been purged: "no row" proves nothing for them (R11). Pure."""

from __future__ import annotations

from outbox.protocol.identifiers import created_ms

CLOCK_SKEW_MS = 600_000
"""How far the application's clock, which is in the id, may be from the database's."""


def may_be_purged(transaction_id: str, purged_until: int | None) -> bool:
    """Whether the row of a transaction may have been purged.

    Args:
        purged_until: The newest time of any purged row, ms since 1970; None: none was purged.
    """
    return purged_until is not None and created_ms(transaction_id) <= purged_until + CLOCK_SKEW_MS
