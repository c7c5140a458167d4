"""The ids of consumed records, of any client."""

from collections.abc import Mapping
from typing import Any, Protocol

from outbox.errors import UsageError
from outbox.protocol.names import MESSAGE_ID_HEADER

MAX_CHARACTERS = 255


class ConsumedRecord(Protocol):
    """A record of any client: its headers are a method (confluent-kafka) or an attribute (aiokafka, kafka-python).

    The headers are pairs or a mapping (FastStream) of names and values. A value is bytes or text.
    """

    @property
    def headers(self) -> Any:
        """Return the headers, or a method that returns them."""


def message_id_of(message: ConsumedRecord | str) -> str:
    """Return the id of a record, or a text that is one.

    Args:
        message: A record with one header `outbox-id`; or an id as text.
    """
    if isinstance(message, str):
        if not fits(message):
            raise UsageError(f"a message id has 1 to {MAX_CHARACTERS} characters, this one has {len(message)}")
        return message
    ids = [value for name, value in _headers(message) if name == MESSAGE_ID_HEADER]
    if len(ids) != 1:
        raise UsageError(
            f"record {_place(message)} has {len(ids)} headers {MESSAGE_ID_HEADER!r}, not one: "
            "if it did not come through an outbox, give once() an id of your own as text"
        )
    id_ = _text(ids[0])
    if not fits(id_):
        raise UsageError(
            f"the header {MESSAGE_ID_HEADER!r} of record {_place(message)} is not a message id: "
            "if it did not come through an outbox, give once() an id of your own as text"
        )
    return id_


def fits(name: str) -> bool:
    """Return whether a text can be a message id or a consumer group."""
    return 0 < len(name) <= MAX_CHARACTERS and "\0" not in name


def _headers(message: ConsumedRecord) -> list[tuple[Any, Any]]:
    if not hasattr(message, "headers"):
        raise UsageError(
            f"{type(message).__name__} has no headers: give once() the record as it was consumed, or an id as text"
        )
    headers = _value(message, "headers") or ()
    return [*(headers.items() if isinstance(headers, Mapping) else headers)]


def _value(message: ConsumedRecord, name: str) -> Any:
    """Return an attribute, or what a method of this name returns; None if there is neither."""
    found = getattr(message, name, None)
    return found() if callable(found) else found


def _place(message: ConsumedRecord) -> str:
    return "/".join(str(_value(message, name)) for name in ("topic", "partition", "offset"))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode() if isinstance(value, bytes) else ""
    except UnicodeDecodeError:
        return ""
