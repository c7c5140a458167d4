"""Publish objects instead of bytes: a real topic with the serializers of its keys and values.

A serializer is one of confluent-kafka (`confluent_kafka.serialization.Serializer`), or any callable that takes an
object and a `SerializationContext` and returns bytes, or None for a null. It may add headers through the context. The
extra `schema-registry` adds Avro, Protobuf and JSON Schema with Schema Registry.
"""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

from outbox.errors import MessageRefused, OutboxError, UsageError
from outbox.message import HeadersInput, Message
from outbox.protocol.half import ANY_PARTITION, Header

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

Serialize = Callable[[T, Any], bytes | None]
"""A serializer of confluent-kafka, or a function with the same parameters."""


@dataclass
class SerializationContext:
    """What a serializer is given besides an object; it has the attributes of confluent-kafka's.

    Args:
        field: `key` or `value`.
        headers: The message's headers. A serializer may add to them, or replace them.
    """

    topic: str
    field: str
    headers: Any


def to_json(value: Any) -> object:
    """Return what JSON has for an object: of a dataclass, a msgspec Struct or a pydantic model its fields.

    A UUID, a Decimal, a date, time or datetime (ISO 8601) becomes text.

    Raises:
        TypeError: It has another type.
    """
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if names is not None and not isinstance(value, type):
        return {name: getattr(value, name) for name in names}
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class SerializationError(OutboxError):
    """An object cannot be serialized. The text contains no payload."""


class JsonSerializer:
    """Serializes objects as compact JSON in UTF-8; refuses NaN and infinities, which JSON lacks.

    Args:
        default: Converts an object that JSON cannot represent to one that it can, or raises TypeError.

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

    def __call__(self, obj: object, ctx: object = None) -> bytes | None:
        """Return the object as JSON; None for None, a tombstone.

        Raises:
            SerializationError: JSON cannot represent it. The text contains no payload.
        """
        del ctx
        if obj is None:
            return None
        try:
            return self._encode(obj).encode()
        except UnicodeEncodeError:
            raise SerializationError("it contains text that is not valid UTF-8 (lone surrogate)") from None
        except RecursionError:
            raise SerializationError("it is nested too deeply") from None
        except TypeError as error:
            raise SerializationError(str(error)) from None  # for a mapping's key; the text names its type only
        except ValueError:
            raise SerializationError("it contains NaN, an infinity, or a reference to itself") from None

    def _replace(self, value: object) -> object:
        try:
            return self._default(value)
        except Exception:  # noqa: BLE001 - the function is the application's; the text may show the value
            raise SerializationError(f"it contains an object of type {type(value).__name__}") from None


def as_bytes(obj: object, ctx: object = None) -> bytes | None:
    """Return bytes unchanged, and text, an int or a UUID as text in UTF-8: the default serializer of keys.

    Raises:
        SerializationError: It is something else.
    """
    del ctx
    if obj is None or isinstance(obj, bytes):
        return obj
    if isinstance(obj, str | int | UUID) and not isinstance(obj, bool):
        return str(obj).encode()
    raise SerializationError("only bytes, text, int and UUID need no serializer; pass a serializer to TypedTopic")


class TypedTopic(Generic[K, V]):
    """A real topic whose messages are built from objects. Create one per topic; threads may share it.

    Args:
        name: The real topic.
        event: The class of all values, such as a pydantic model or a dataclass: its name is the header `type` of each
            message. None: any object, without that header.
        value: Serializer of values; JSON by default.
        key: Serializer of keys; by default bytes are unchanged, and text, int and UUID become text in UTF-8.

    Example:
        orders: TypedTopic[str, dict[str, int]] = TypedTopic("orders", value=AvroSerializer(registry, SCHEMA))
        outbox.publish(session, orders.message({"id": 42}, key="42"))
    """

    def __init__(
        self,
        name: str,
        event: type[V] | None = None,
        *,
        value: Serialize[V] | None = None,
        key: Serialize[K] = as_bytes,
    ) -> None:
        self.name = name
        self._event = event
        self._value: Serialize[V] = JsonSerializer() if value is None else value
        self._key = key

    def __repr__(self) -> str:
        """Return the topic only: a serializer may hold the password of a registry."""
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
        not_before: dt.datetime | None = None,
    ) -> Message:
        """Return a message for this topic.

        A serializer with a schema queries the registry at its first message of a topic and blocks until it answers. In
        asyncio build the first message in a thread (`asyncio.to_thread`).

        Args:
            value: The object; None is a tombstone with any serializer.
            key: Object for the key; None for no key.
            headers: As for `Message`; serializers may add headers.
            partition: As for `Message`.
            timestamp: As for `Message`, ms since 1970.
            check_immunity: As for `Message`, seconds.
            not_before: As for `Message`.

        Raises:
            MessageRefused: Key or value cannot be serialized, or `Message` refuses another argument.
            UsageError: A serializer is asynchronous, or does not return bytes.
        """
        # The checks of a message run before a serializer registers a schema.
        plain = Message(self.name, None, None, headers, partition, timestamp, check_immunity, not_before)
        context = SerializationContext(self.name, "key", [*plain.header_list(), *self._type_of(value)])
        key_bytes = self._serialize(self._key, key, context)
        context.field = "value"
        value_bytes = self._serialize(self._value, value, context)
        return replace(plain, value=value_bytes, key=key_bytes, headers=_headers(context))

    def _type_of(self, value: object) -> Iterator[tuple[str, Any]]:
        """Yield the header `type`; refuse a value of another class."""
        if self._event is not None and value is not None:
            if not isinstance(value, self._event):
                raise MessageRefused(f"Topic {self.name!r} takes {self._event.__name__}, not {type(value).__name__}.")
            yield "type", type(value).__name__.encode()

    def _serialize(self, serialize: Serialize[T], obj: T | None, context: SerializationContext) -> bytes | None:
        if obj is None:
            return None
        try:
            found: object = serialize(obj, context)
        except Exception as error:  # noqa: BLE001 - a serializer is the application's code
            # The text of such an error may show the payload, so it is neither repeated nor printed as the cause.
            raise MessageRefused(
                f"The {context.field} of a message for topic {self.name!r}, of type {type(obj).__name__}, "
                f"cannot be serialized: {_reason(error)}."
            ) from None
        if found is None or isinstance(found, bytes):
            return found
        if hasattr(found, "close"):
            found.close()  # a coroutine that is never awaited
        raise UsageError(
            f"The serializer of topic {self.name!r} returned {type(found).__name__}, not bytes. "
            "Use a synchronous serializer that returns bytes."
        )


def _headers(context: SerializationContext) -> list[Header]:
    headers = context.headers or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def _reason(error: Exception) -> str:
    """Describe an error without showing any payload."""
    if isinstance(error, SerializationError):
        return str(error.args[0])
    if type(error).__name__ == "SchemaRegistryError":  # of an extra; its text is about schemas only
        return f"the schema registry answered: {error}"
    place = getattr(error.__context__, "absolute_schema_path", None)  # jsonschema, whose own text shows the value
    if place is not None:
        return f"it violates the schema at {'/'.join(map(str, place))}"
    return f"{type(error).__name__} (see __context__ of this error; its text may show the value)"
