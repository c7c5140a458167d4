"""Objects instead of bytes: a real topic with the serializers of its keys and values.

A serializer is what confluent-kafka means by it (`confluent_kafka.serialization.Serializer`): a callable that takes an
object and a `SerializationContext` and returns bytes, or None for a null. It may add headers through the context. Avro,
Protobuf and JSON Schema with Schema Registry come with the extra `schema-registry`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError, Serializer

from outbox.errors import MessageRefused, UsageError
from outbox.message import HeadersInput, Message
from outbox.protocol.half import ANY_PARTITION, Header

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Serialize = Callable[[T, SerializationContext], bytes | None]
"""A serializer of confluent-kafka, or a function like one; both sides of the type are checked if it has types."""


def to_json(value: object) -> object:
    """What JSON has no form for, as text: a UUID, a Decimal (without loss), a date, time or datetime (ISO 8601).

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _UnserializableError(SerializationError):
    """A reason that shows no payload."""


class JsonSerializer(Serializer):
    """Objects as compact JSON in UTF-8; NaN and infinities are refused, because JSON has none.

    Args:
        default: Makes something that JSON has a form for of what it has none for, or raises TypeError.

    Example:
        >>> JsonSerializer()({"order": 42, "paid": Decimal("9.90")})
        b'{"order":42,"paid":"9.90"}'
    """

    __slots__ = ("_default", "_encode")

    def __init__(self, default: Callable[[Any], object] = to_json) -> None:
        self._default = default
        self._encode = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=self._replace
        ).encode

    def __call__(self, obj: object, ctx: SerializationContext | None = None) -> bytes | None:
        """The object as JSON; None stays None, a tombstone.

        Raises:
            SerializationError: JSON has no form for it; the text shows no payload.
        """
        del ctx
        if obj is None:
            return None
        try:
            return self._encode(obj).encode()
        except UnicodeEncodeError:
            raise _UnserializableError("it holds half of a surrogate pair, which UTF-8 has no form for") from None
        except RecursionError:
            raise _UnserializableError("it is nested too deep") from None
        except TypeError as error:
            raise _UnserializableError(str(error)) from None  # of a mapping's key; it tells the type
        except ValueError:
            raise _UnserializableError("it holds NaN, or an infinity, or itself") from None

    def _replace(self, value: object) -> object:
        try:
            return self._default(value)
        except Exception:  # noqa: BLE001 - somebody else's function; its text may show the value
            raise _UnserializableError(f"it holds an object of type {type(value).__name__}") from None


def as_bytes(obj: object, ctx: SerializationContext | None = None) -> bytes | None:
    """Bytes as they are and text as UTF-8: what keys are serialized with if nothing else is said.

    Raises:
        SerializationError: It is neither.
    """
    del ctx
    if obj is None or isinstance(obj, bytes):
        return obj
    if isinstance(obj, str):
        return obj.encode()
    raise _UnserializableError("only bytes and text are taken as they are: give a serializer")


class TypedTopic(Generic[K, V]):
    """A real topic whose messages are made of objects; make one per topic and use it everywhere, from any thread.

    Args:
        name: The real topic.
        value: Serializer of values; JSON if none is given.
        key: Serializer of keys; by default bytes are taken as they are and text as UTF-8.

    Example:
        orders: TypedTopic[str, dict[str, int]] = TypedTopic("orders", value=AvroSerializer(registry, SCHEMA))
        outbox.publish(session, orders.message({"id": 42}, key="42"))
    """

    def __init__(self, name: str, *, value: Serialize[V] | None = None, key: Serialize[K] = as_bytes) -> None:
        self.name = name
        self._value: Serialize[V] = JsonSerializer() if value is None else value
        self._key = key

    def __repr__(self) -> str:
        """The topic only: a serializer may hold the password of a registry."""
        return f"{type(self).__name__}({self.name!r})"

    def message(
        self,
        value: V | None,
        *,
        key: K | None = None,
        headers: HeadersInput = (),
        partition: int = ANY_PARTITION,
        timestamp: int | None = None,
        check_immunity: float | None = None,
    ) -> Message:
        """A message for this topic.

        A serializer with a schema asks the registry at its first message of a topic, and waits for the answer: in
        asyncio make the first one in a thread (`asyncio.to_thread`).

        Args:
            value: The object; None is a tombstone, whatever the serializer.
            key: Object for the key; None for no key.
            headers: As for `Message`; serializers may add to them.
            partition: As for `Message`.
            timestamp: As for `Message`, ms since 1970.
            check_immunity: As for `Message`, seconds.

        Raises:
            MessageRefused: Key or value cannot be serialized, or `Message` refuses the rest.
            UsageError: A serializer is asynchronous, or returns no bytes.
        """
        # What a message refuses is refused before a schema is registered.
        plain = Message(self.name, None, None, headers, partition, timestamp, check_immunity)
        context = SerializationContext(self.name, MessageField.KEY, plain.header_list())  # type: ignore[arg-type]  # list is invariant
        key_bytes = self._serialize(self._key, key, context)
        context.field = MessageField.VALUE
        value_bytes = self._serialize(self._value, value, context)
        return replace(plain, value=value_bytes, key=key_bytes, headers=_headers(context))

    def _serialize(self, serialize: Serialize[T], obj: T | None, context: SerializationContext) -> bytes | None:
        if obj is None:
            return None
        try:
            found: object = serialize(obj, context)
        except Exception as error:  # noqa: BLE001 - a serializer is anybody's code
            # The text of a foreign error may show the payload, so it is neither repeated nor printed as the cause.
            raise MessageRefused(
                f"the {context.field} of a message for topic {self.name!r}, of type {type(obj).__name__}, "
                f"cannot be serialized: {_reason(error)}"
            ) from None
        if found is None or isinstance(found, bytes):
            return found
        if hasattr(found, "close"):
            found.close()  # a coroutine that nobody awaits
        raise UsageError(
            f"the serializer of topic {self.name!r} returned {type(found).__name__}, not bytes: "
            "give one that is not asynchronous"
        )


def _headers(context: SerializationContext) -> list[Header]:
    headers = context.headers or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def _reason(error: Exception) -> str:
    """What can be told of an error without showing any payload."""
    if isinstance(error, _UnserializableError):
        return str(error.args[0])
    if type(error).__name__ == "SchemaRegistryError":  # of an extra; what a registry says is about schemas
        return f"the schema registry says: {error}"
    place = getattr(error.__context__, "absolute_schema_path", None)  # of jsonschema, whose own text shows the value
    if place is not None:
        return f"it breaks the schema at {'/'.join(map(str, place))}"
    return f"{type(error).__name__} (the __context__ of this error; its text may show the value)"
