"""An envelope: a message as JSON that is never null, so that tombstones of users survive compaction."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import get_number, is_utf8
from outbox.protocol.half import Header

_COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""`json.dumps` would make one each time."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A half message out of its place: in the discard topic or in a check request.

    Args:
        value: The user's value, or None (a tombstone).
        headers: All headers of the half, control headers too, in order.
        timestamp: Append time of the half, ms since 1970 by the broker's clock.
        offset: Offset of the half in its partition.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    offset: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; bytes are base64, null means absent."""
        return {
            "key": _encode(self.key),
            "value": _encode(self.value),
            "headers": [[name, _encode(value)] for name, value in self.headers],
            "timestamp": self.timestamp,
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, fields: object) -> Envelope:
        if not isinstance(fields, dict) or not isinstance(fields.get("headers"), list):
            raise ProtocolError("an envelope is not a JSON object with a list of headers")
        return cls(
            _get_bytes(fields, "key"),
            _get_bytes(fields, "value"),
            tuple(_header(pair) for pair in fields["headers"]),
            get_number(fields, "timestamp"),
            get_number(fields, "offset"),
        )

    def encode(self) -> bytes:
        return to_json(self.as_json())


def parse_envelope(value: bytes | None) -> Envelope:
    return Envelope.from_json(parse_json(value, "an envelope"))


def to_json(fields: Mapping[str, Any]) -> bytes:
    """Compact JSON, fields in the given order, text as UTF-8."""
    return _COMPACT.encode(fields).encode()


def parse_json(value: bytes | None, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(value or b"")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"{what} is not a JSON object")
    return fields


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: object) -> bytes | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise ProtocolError("bytes are base64 text or null")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ProtocolError(f"bytes are not base64: {error}") from None


def _get_bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    if name not in fields:
        raise ProtocolError(f"field {name!r} is missing; write null for no value")
    return _decode(fields[name])


def _header(pair: object) -> Header:
    match pair:
        case [str() as name, value] if is_utf8(name):
            return name, _decode(value)
        case _:
            raise ProtocolError("a header is not a list of its name and its value")
