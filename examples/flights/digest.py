"""A hash of a message's key, value and headers, so that a changed byte anywhere is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

Header = tuple[str, bytes | None]


def digest(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> str:
    """SHA-256 over length-prefixed parts; an absent part differs from an empty one."""
    hasher = hashlib.sha256()
    parts = [key, value]
    for name, header in headers:
        parts += [name.encode(), header]
    for part in parts:
        hasher.update(b"-" if part is None else f"{len(part)}:".encode() + part)
    return hasher.hexdigest()
