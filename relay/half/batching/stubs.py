"""Stubs of halves that the discard topic cannot keep. Pure.

A compressed batch of a few kilobytes passes the half topic's `max.message.bytes` and unpacks to much more than the
discard topic takes. Such a half leaves as a stub: the first bytes of its key and value, their size, and the SHA-256 of
the value. So a discard always fits (R37).
"""

from __future__ import annotations

import hashlib

from outbox.protocol.names import FORMAT_VERSION, STUB_HEADER
from outbox.protocol.size import discard_record_size, manifest_record_size
from relay.half.state.half_records import Half

FIRST_BYTES = 500
"""Bytes of the key, and of the value, that a stub keeps."""


def keepable(half: Half, most: int) -> Half:
    """Return a half, or a stub in its place if the discard topic could not take it.

    Args:
        most: `max.message.bytes` of the discard topic.
    """
    if half.is_small(most) or (size := _kept_size(half)) <= most:
        return half
    key, value = half.key or b"", half.value or b""
    stub = f"{FORMAT_VERSION};{len(key)};{len(value)};{hashlib.sha256(value).hexdigest()}"
    why = half.error or f"it takes {size} bytes in the discard topic, whose max.message.bytes is {most}"
    return Half(
        half.offset,
        half.append_time,
        None if half.key is None else key[:FIRST_BYTES],
        None if half.value is None else value[:FIRST_BYTES],
        ((STUB_HEADER, stub.encode()),),
        None,
        why,
    )


def _kept_size(half: Half) -> int:
    """Return the size of the largest record that keeps a half in the discard topic, bytes."""
    body = discard_record_size(half.key, half.value, half.headers)
    control = half.control
    return (
        body if control is None else max(body, manifest_record_size(1, control.ordering_key(half.key), control.service))
    )
