"""CloudEvents in binary mode of the Kafka protocol binding; needs the extra `cloudevents`.

The attributes are headers (`ce_id`, `ce_source`, `ce_type`, …, `content-type`), the data is the value, and the
extension `partitionkey` is the key. The official SDK (`cloudevents` 2) marshals events and can read them back.
"""

import base64
from typing import Any

from confluent_kafka.serialization import SerializationError

from outbox.errors import MessageRefused
from outbox.message import HeadersInput, Message
from outbox.protocol.half import ANY_PARTITION
from outbox.serialization import JsonSerializer

try:
    from cloudevents.core.base import BaseCloudEvent
    from cloudevents.core.bindings.kafka import CE_PREFIX, to_binary
    from cloudevents.core.formats.json import JSONFormat
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "outbox.cloudevents needs an extra. Run pip install 'kafka-transactional-outbox[cloudevents]'", name=error.name
    ) from error


class _Data(JSONFormat):
    """The SDK's JSON format, but strict: the SDK would convert other objects with `str()`."""

    _to_json = JsonSerializer()

    def write_data(self, data: Any, datacontenttype: str | None) -> bytes:
        """Return the data as bytes; an empty value for None, because null would be a tombstone."""
        if data is None or isinstance(data, bytes | bytearray | str):
            return super().write_data(bytes(data) if isinstance(data, bytearray) else data, datacontenttype)
        if not _is_json(datacontenttype or self.DEFAULT_CONTENT_TYPE):
            raise MessageRefused(
                f"The data of the event, of type {type(data).__name__}, cannot be converted to {datacontenttype}. "
                "Give it as bytes or text."
            )
        try:
            return self._to_json(data) or b""
        except SerializationError as error:
            raise MessageRefused(f"The data of the event cannot be converted to JSON: {error.args[0]}.") from None


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower().endswith(("/json", "+json"))


_data = _Data()


def event_message(
    topic: str,
    event: BaseCloudEvent,
    *,
    key: bytes | str | None = None,
    headers: HeadersInput = (),
    partition: int = ANY_PARTITION,
    timestamp: int | None = None,
    check_immunity: float | None = None,
) -> Message:
    """Return a message for a CloudEvent.

    Args:
        topic: Real topic.
        event: The event; its data is bytes, text, or an object that JSON can represent.
        key: Key of the message; by default the event's extension `partitionkey`, if it has one.
        headers: Further headers, after those of the event.
        partition: As for `Message`.
        timestamp: As for `Message`, ms since 1970; the event's own time is in the header `ce_time`.
        check_immunity: As for `Message`, seconds.

    Raises:
        MessageRefused: The data cannot be converted to its content type, or `Message` refuses another argument.

    Example:
        event = CloudEvent({"source": "/orders", "type": "order.created", "partitionkey": "42"}, {"total": 7})
        outbox.publish(session, event_message("orders", event))
    """
    marshalled = to_binary(event, _data, None if key is None else lambda _event: key)
    of_event: dict[str, bytes] = {**marshalled.headers, **_exceptions(event)}
    more = Message(topic, headers=headers).header_list()
    return Message(
        topic, marshalled.value, marshalled.key, [*of_event.items(), *more], partition, timestamp, check_immunity
    )


def _exceptions(event: BaseCloudEvent) -> dict[str, bytes]:
    """Return the attributes that the SDK does not encode by the CloudEvents type system: "true" and "false", Base64."""
    exceptions = {}
    for name, value in event.get_attributes().items():
        if isinstance(value, bool):
            exceptions[CE_PREFIX + name] = b"true" if value else b"false"
        elif isinstance(value, bytes):
            exceptions[CE_PREFIX + name] = base64.b64encode(value)
    return exceptions
