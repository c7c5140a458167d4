"""Sizes of records in bytes, as a broker compares them with a topic's `max.message.bytes`. Pure.

A broker compares the size of a whole record batch. A record that fits in a batch of its own can be delivered, so all
sizes here are those of such a batch: format 2, not compressed. Publishers and relay use the same functions, with the
longest values for what only the relay adds: the relay accepts what a publisher accepted (R48).
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote_from_bytes

from outbox.protocol import names
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason, Manifest, copy_key
from outbox.protocol.envelope import Envelope
from outbox.protocol.fields import MAX_INT32, MAX_INT64
from outbox.protocol.half import HalfControl, Truth, count_header, real_headers
from outbox.protocol.op import OpKind
from outbox.protocol.positions import MAX_POSITION, Positions

Headers = Sequence[tuple[str, bytes | str | None]]

BATCH_HEADER: Final = 61
"""Bytes of a record batch before its first record."""

_FIXED: Final = 3
"""Bytes of a record's attributes, timestamp delta and offset delta: both deltas are 0 in a batch of one record."""

_LONGEST_ID: Final = "00000000-0000-7000-8000-000000000000"
_LONGEST_REASON: Final = max(DiscardReason, key=len)
_TEXTS: Final = 2_000
"""Bytes allowed for a manifest's detail and last answer."""

_FRAMES: Final = 8_192
"""Bytes that no frame exceeds: a service has at most 200 characters, a topic's name 249."""

_PAIR: Final = len(f"[{MAX_POSITION},{MAX_INT64}],")
_POSITION: Final = len(f"{MAX_POSITION},")


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the size of a record batch with this one record, bytes."""
    return _batch(_content(key, value, headers), len(headers))


def real_record_size(key: bytes | None, value: bytes | None, user_headers: Headers, service: str) -> int:
    """Return the largest size that a message can have on its real topic, bytes."""
    added, count = _added(service)
    return _batch(_content(key, value, user_headers) + added, len(user_headers) + count)


def discard_record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the largest size that a half can have in the discard topic, bytes."""
    return _batch(_field(len(_LONGEST_KEY)) + _field(_envelope(key, value, headers)), 0)


def check_record_size(key: bytes | None, value: bytes | None, headers: Headers, service: str) -> int:
    """Return the largest size of a check request that carries a half: that of a listener's transaction, bytes."""
    return _batch(_field(len(service)) + _field(_check_frame(service) + _envelope(key, value, headers)), 0)


def manifest_record_size(messages: int, ordering_key: bytes | None, service: str) -> int:
    """Return the largest size that a transaction's manifest can have in the discard topic, bytes."""
    value = _manifest_frame(service) + _TEXTS + (_PAIR + _POSITION) * messages + quoted_size(ordering_key)
    return _batch(_field(len(_LONGEST_KEY)) + _field(value), 0)


def largest_size(content: int, headers: int, ordering_key: bytes | None, messages: int) -> int:
    """Return a size that none of a message's records exceeds, bytes: quickly, and several times too large.

    Args:
        content: Bytes of the message's key, value, header names and header values.
    """
    ordering = 0 if ordering_key is None else len(ordering_key)
    return _FRAMES + 6 * content + 16 * headers + 4 * ordering + (_PAIR + _POSITION) * messages


def quoted_size(key: bytes | None) -> int:
    """Return the size of a key that is percent-encoded, bytes."""
    return 0 if key is None else len(quote_from_bytes(key, safe=""))


# --- record batches -----------------------------------------------------------------------------------------------


def _batch(content: int, headers: int) -> int:
    body = _FIXED + content + _varint(headers)
    return BATCH_HEADER + _varint(body) + body


def _content(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of key, value and headers, each with its length."""
    size = _bytes(key) + _bytes(value)
    for name, given in headers:
        size += _bytes(name) + _bytes(given)
    return size


def _bytes(data: bytes | str | None) -> int:
    return 1 if data is None else _field(_length(data))  # null has the length -1


def _length(data: bytes | str) -> int:
    return len(data) if isinstance(data, bytes) or data.isascii() else len(data.encode())


def _field(length: int) -> int:
    return _varint(length) + length


def _varint(number: int) -> int:
    """Bytes of a number, 0 or more, in zigzag encoding: 7 bits a byte, one of all bits for the sign."""
    return (number.bit_length() + 7) // 7


# --- what is not known before the relay writes it: the longest ------------------------------------------------------

_LONGEST_KEY: Final = copy_key(_LONGEST_ID, MAX_POSITION, MAX_INT64)


@lru_cache(maxsize=4_096)
def _added(service: str) -> tuple[int, int]:
    """Bytes and number of the headers that the relay adds to a record, with those of a late one."""
    control = HalfControl("", 0, _LONGEST_ID, MAX_POSITION, service, Truth.ROW)
    counted = [*real_headers(control, [], MAX_INT32, MAX_INT64), count_header(MAX_INT32)]
    headers = [*counted, (names.LATE_HEADER, _LONGEST_REASON.encode())]
    return _content(None, None, headers) - _content(None, None, []), len(headers)


@lru_cache(maxsize=4_096)
def _check_frame(service: str) -> int:
    """Bytes of a check request around its message."""
    request = CheckRequest(
        _LONGEST_ID,
        service,
        Truth.LISTENER,
        _LONGEST_ID,
        MAX_INT32,
        Positions.of([MAX_POSITION]),
        MAX_INT64,
        MAX_INT64,
        MAX_INT32,
        _LONGEST_ID,
    )
    return len(request.encode())


@lru_cache(maxsize=4_096)
def _manifest_frame(service: str) -> int:
    """Bytes of a manifest without its texts, ordering key, positions and offsets."""
    manifest = Manifest(
        _LONGEST_ID,
        service,
        Truth.LISTENER,
        _LONGEST_ID,
        MAX_INT32,
        _LONGEST_REASON,
        "",
        max(OpKind, key=len),
        Positions(()),
        (),
        MAX_INT64,
        MAX_INT32,
        "",
        "",
        _LONGEST_ID,
    )
    return len(manifest.encode())


# --- envelopes ----------------------------------------------------------------------------------------------------

_ENVELOPE_FRAME: Final = len(Envelope(b"", b"", (), MAX_INT64, MAX_INT64).encode())
_HEADER_FRAME: Final = len("[,],")


def _envelope(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = _ENVELOPE_FRAME + _base64(key) + _base64(value)
    for name, given in headers:
        size += _HEADER_FRAME + _json_text(name) + _base64(given) + len('""')
    return size


def _base64(data: bytes | str | None) -> int:
    """Bytes in base64, without its quotation marks; `null` is two bytes longer than those."""
    return 2 if data is None else (_length(data) + 2) // 3 * 4


@lru_cache(maxsize=1_024)
def _json_text(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode())
