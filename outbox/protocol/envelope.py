"""An envelope: a message as JSON that is never null, so that tombstones of users survive compaction."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Header


@dataclass(frozen=True, slots=True)
class Envelope:
    """A half message out of its place: in the discard topic or in a check request.

    Args:
        key: The user's key, or None.
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
        """A JSON object; bytes are base64, null means absent."""
        return {
            "key": _encode(self.key),
            "value": _encode(self.value),
            "headers": [[name, _encode(value)] for name, value in self.headers],
            "timestamp": self.timestamp,
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Envelope:
        """Read the JSON object.

        Raises:
            ProtocolError: A field is missing or of the wrong form.
        """
        try:
            return cls(
                _decode(fields["key"]),
                _decode(fields["value"]),
                tuple((str(name), _decode(value)) for name, value in fields["headers"]),
                int(fields["timestamp"]),
                int(fields["offset"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"an envelope is malformed: {error!r}") from None

    def encode(self) -> bytes:
        """The envelope as a record's value."""
        return to_json(self.as_json())


def parse_envelope(value: bytes | None) -> Envelope:
    """Read an envelope that is a record's value.

    Raises:
        ProtocolError: It is none.
    """
    return Envelope.from_json(parse_json(value, "an envelope"))


def to_json(fields: Mapping[str, Any]) -> bytes:
    """Compact JSON, fields in the given order, text as UTF-8."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def parse_json(value: bytes | None, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ProtocolError: It is none.
    """
    try:
        fields = json.loads(value or b"")
    except ValueError as error:
        raise ProtocolError(f"{what} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"{what} is not a JSON object")
    return fields


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
