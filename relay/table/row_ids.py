"""Whether a text can be the id of a row, so that a statement with it cannot fail. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from uuid import UUID

_MAX_BIGINT = 2**63 - 1
_DIGITS = re.compile(r"-?[0-9]{1,19}")


def is_bigint(text: str) -> bool:
    """Return whether a text is a number that a bigint can hold."""
    return _DIGITS.fullmatch(text) is not None and abs(int(text)) <= _MAX_BIGINT


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID as Postgres writes it."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def is_text(text: str) -> bool:
    """Return whether Postgres can hold a text."""
    return "\0" not in text


IS_ID: Mapping[str, Callable[[str], bool]] = {"bigint[]": is_bigint, "uuid[]": is_uuid, "text[]": is_text}
"""By the type of an array of ids."""
