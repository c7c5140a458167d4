"""The mark of all that the hostile application writes, by which it is found where it must not be. Pure."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

from outbox.protocol.identifiers import make_transaction_id

MARK = "hostile"
"""Beginning of its names and values."""

_TAIL = b"hostil"
_MARKS = (MARK.encode(), _TAIL.hex().encode())


def marked_id(unix_ms: int, chance: random.Random) -> str:
    return make_transaction_id(unix_ms, chance.randbytes(4) + _TAIL)


def strangers(records: Iterable[Any]) -> list[str]:
    """Return where records with the mark are, in their key, value or headers."""
    return [
        f"{record.topic()}/{record.partition()}/{record.offset()}"
        for record in records
        for texts in [[record.key(), record.value(), *_parts(record.headers() or ())]]
        if any(mark in text for text in texts if text for mark in _MARKS)
    ]


def _parts(headers: Sequence[tuple[str, bytes | None]]) -> Iterable[bytes | None]:
    for name, value in headers:
        yield name.encode()
        yield value
