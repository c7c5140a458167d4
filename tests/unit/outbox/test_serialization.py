"""Objects become bytes through confluent-kafka's serializers, and what cannot is refused without being shown."""

import datetime as dt
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import DoubleSerializer, IntegerSerializer, MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from outbox import Message, MessageRefused
from outbox.errors import UsageError
from outbox.serialization import JsonSerializer, SerializationError, TypedTopic, to_json
from tests.support.schemas import AVRO, JSON_SCHEMA, ORDER, SCHEMAS, Schema, new_registry

ID = UUID(int=7)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None, True], "b": "x"}, '{"a":[1,null,true],"b":"x"}'),
        ({"name": "Zoë ☃ 😀"}, '{"name":"Zoë ☃ 😀"}'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("12.3400"), '"12.3400"'),
        (dt.datetime(2026, 11, 21, 12, 0, 0, 5, dt.UTC), '"2026-11-21T12:00:00.000005+00:00"'),
        (dt.date(2026, 11, 21), '"2026-11-21"'),
        (dt.time(12, 30), '"12:30:00"'),
        ([], "[]"),
        ("", '""'),
        (0, "0"),
        (False, "false"),
    ],
)
def test_json_is_compact_and_utf_8(value: object, text: str) -> None:
    assert JsonSerializer()(value) == text.encode()


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=10,
)


@given(VALUES)
def test_json_reads_back_what_was_written(value: object) -> None:
    written = JsonSerializer()(value)
    assert written is None if value is None else json.loads(written or b"") == value


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "NaN"),
        ({"a": [math.inf]}, "NaN, an infinity"),
        (ENDLESS, "a reference to itself"),
        (object(), "type object"),
        (b"secret", "type bytes"),
        ({("secret", 1): 1}, "not tuple"),
        ("secret \ud800", "surrogate"),
    ],
    ids=["NaN", "infinity", "circle", "object", "bytes", "key", "surrogate"],
)
def test_json_refuses_what_it_has_no_form_for(value: object, says: str) -> None:
    topic: TypedTopic[bytes, object] = TypedTopic("orders")
    with pytest.raises(MessageRefused, match=says) as refused:
        topic.message(value)
    assert f"of type {type(value).__name__}" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_json_takes_the_users_own_default() -> None:
    def default(value: object) -> object:
        return sorted(value) if isinstance(value, set) else to_json(value)

    assert JsonSerializer(default)({"tags": {"b", "a"}, "price": Decimal(1)}) == b'{"tags":["a","b"],"price":"1"}'


def test_an_error_of_the_users_own_default_shows_no_payload() -> None:
    def default(value: object) -> object:
        raise ValueError(f"cannot do {value}")

    with pytest.raises(MessageRefused) as refused:
        TypedTopic[bytes, object]("orders", value=JsonSerializer(default)).message({"a": Decimal(4711)})
    assert "type Decimal" in str(refused.value)
    assert "4711" not in str(refused.value)


def test_a_message_is_made_of_objects() -> None:
    topic: TypedTopic[int, float] = TypedTopic("orders", value=DoubleSerializer(), key=IntegerSerializer())
    made = topic.message(1.5, key=7, headers={"type": "created"}, partition=2, timestamp=3, check_immunity=60)
    assert (made.value, made.key) == (b"\x3f\xf8" + bytes(6), b"\x00\x00\x00\x07")
    assert (made.topic, made.partition, made.timestamp, made.check_immunity) == ("orders", 2, 3, 60)
    assert made.header_list() == [("type", b"created")]


@pytest.mark.parametrize(
    ("key", "stored"),
    [("kéy", "kéy".encode()), (b"\xff", b"\xff"), ("", b""), (None, None), (42, b"42"), (ID, str(ID).encode())],
)
def test_keys_are_taken_as_they_are(key: str | bytes | int | UUID | None, stored: bytes | None) -> None:
    topic: TypedTopic[str | bytes | int | UUID, object] = TypedTopic("orders")
    assert topic.message({}, key=key).key == stored


def test_a_key_of_another_type_needs_a_serializer() -> None:
    topic: TypedTopic[object, object] = TypedTopic("orders")
    with pytest.raises(MessageRefused, match=r"The key .* 'orders', of type bool.*pass a serializer"):
        topic.message({}, key=True)


class Placed(BaseModel):
    id: UUID
    total: Decimal


@dataclass(slots=True)
class Shipped:
    order: Placed
    at: dt.date


def test_events_of_classes_are_objects_in_json() -> None:
    placed = Placed(id=ID, total=Decimal("9.90"))
    struct = type("Struct", (), {"__struct_fields__": ("id",), "id": 7})()  # as msgspec makes them
    inner = f'{{"id":"{ID}","total":"9.90"}}'
    assert JsonSerializer()([placed, struct]) == f'[{inner},{{"id":7}}]'.encode()
    shipped = JsonSerializer()([Shipped(placed, dt.date(2026, 1, 2))])
    assert shipped == f'[{{"order":{inner},"at":"2026-01-02"}}]'.encode()
    with pytest.raises(SerializationError, match="of type type"):
        JsonSerializer()(Shipped)


def test_a_topic_of_a_class_names_it_and_takes_no_other() -> None:
    topic: TypedTopic[int, Placed] = TypedTopic("orders", Placed)
    made = topic.message(Placed(id=ID, total=Decimal(1)), key=42, headers={"own": "1"})
    assert made.header_list() == [("own", b"1"), ("type", b"Placed")]
    assert topic.message(None, key=42).header_list() == []
    with pytest.raises(MessageRefused, match="'orders' takes Placed, not dict"):
        topic.message({}, key=42)  # type: ignore[arg-type]  # that is what is tested


def test_none_is_a_tombstone_and_no_serializer_is_asked() -> None:
    def never(obj: object, ctx: SerializationContext) -> bytes:
        raise AssertionError((obj, ctx))

    made = TypedTopic[bytes, object]("orders", value=never, key=never).message(None, key=None)
    assert (made.value, made.key) == (None, None)


def test_a_serializer_may_say_null() -> None:
    assert TypedTopic[bytes, object]("orders", value=lambda _obj, _ctx: None).message(1).value is None


def test_serializers_see_topic_field_and_headers_and_may_add_to_them() -> None:
    seen = []

    def serialize(obj: object, ctx: SerializationContext) -> bytes:
        seen.append((obj, ctx.topic, ctx.field))
        assert isinstance(ctx.headers, list)
        ctx.headers.append((f"{ctx.field}-type", type(obj).__name__))
        return b"x"

    topic: TypedTopic[str, int] = TypedTopic("orders", value=serialize, key=serialize)
    headers = [("a", b"1"), ("a", b"2")]
    made = topic.message(1, key="k", headers=headers)
    assert seen == [("k", "orders", MessageField.KEY), (1, "orders", MessageField.VALUE)]
    assert made.header_list() == [*headers, ("key-type", b"str"), ("value-type", b"int")]
    assert topic.message(1, headers=headers).header_list() == [*headers, ("value-type", b"int")]
    assert headers == [("a", b"1"), ("a", b"2")]


def test_a_serializer_may_bring_headers_of_its_own_as_a_mapping() -> None:
    def serialize(obj: object, ctx: SerializationContext) -> bytes:
        ctx.headers = {"id": b"7", "none": None}
        return repr(obj).encode()

    made = TypedTopic[bytes, int]("orders", value=serialize).message(1, headers={"lost": b"x"})
    assert made.header_list() == [("id", b"7"), ("none", None)]


def test_what_a_message_refuses_is_refused_before_a_serializer_is_asked() -> None:
    def never(obj: object, ctx: SerializationContext) -> bytes:
        raise AssertionError((obj, ctx))

    topic: TypedTopic[bytes, object] = TypedTopic("orders", value=never)
    with pytest.raises(MessageRefused, match="reserved"):
        topic.message(1, headers={"outbox-id": b"x"})


def test_a_serializer_that_returns_text_is_an_error_of_the_program() -> None:
    topic: TypedTopic[bytes, object] = TypedTopic("orders", value=lambda obj, _ctx: str(obj))  # type: ignore[arg-type,return-value]  # the point
    with pytest.raises(UsageError, match="str, not bytes"):
        topic.message(1)


def test_a_foreign_error_is_kept_but_neither_repeated_nor_printed() -> None:
    def serialize(obj: object, _ctx: SerializationContext) -> bytes:
        raise ValueError(f"not this one: {obj}")

    with pytest.raises(MessageRefused) as refused:
        TypedTopic[bytes, str]("orders", value=serialize).message("secret")
    assert "secret" not in str(refused.value)
    assert "ValueError" in str(refused.value)
    assert isinstance(refused.value.__context__, ValueError)
    assert refused.value.__suppress_context__


MAGIC = b"\x00"


@pytest.fixture
def registry() -> SchemaRegistryClient:
    return new_registry()


@pytest.fixture(params=SCHEMAS, ids=[schema.name for schema in SCHEMAS])
def schema(request: pytest.FixtureRequest) -> Schema:
    found: Schema = request.param
    return found


def read(schema: Schema, registry: SchemaRegistryClient, message: Message) -> object:
    return schema.read(registry, message.topic, message.value_bytes(), message.header_list())


def test_the_schema_is_named_in_the_magic_bytes(schema: Schema, registry: SchemaRegistryClient) -> None:
    topic: TypedTopic[bytes, Any] = TypedTopic("orders", value=schema.serializer(registry, {}))
    made = topic.message(schema.value)
    value = made.value_bytes() or b""
    assert value[:1] == MAGIC
    assert int.from_bytes(value[1:5], "big") == registry.get_latest_version("orders-value").schema_id
    assert made.header_list() == []
    assert read(schema, registry, made) == schema.value


def test_key_and_value_have_their_own_schemas(registry: SchemaRegistryClient) -> None:
    avro = AvroSerializer(registry, AVRO, conf={"schema.id.serializer": header_schema_id_serializer})
    key = AvroSerializer(registry, '"string"', conf={"schema.id.serializer": header_schema_id_serializer})
    made = TypedTopic[str, Any]("orders", value=avro, key=key).message(ORDER, key="42")
    assert [name for name, _ in made.header_list()] == ["__key_schema_id", "__value_schema_id"]
    assert sorted(registry.get_subjects()) == ["orders-key", "orders-value"]


def test_what_breaks_the_schema_is_refused_without_being_shown(schema: Schema, registry: SchemaRegistryClient) -> None:
    topic: TypedTopic[bytes, Any] = TypedTopic("orders", value=schema.serializer(registry, {}))
    with pytest.raises(MessageRefused, match="cannot be serialized") as refused:
        topic.message(schema.wrong)
    assert "secret" not in str(refused.value)


def test_json_schema_tells_the_place_in_the_schema(registry: SchemaRegistryClient) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer  # noqa: PLC0415 - it takes 2 s to import

    topic: TypedTopic[bytes, Any] = TypedTopic("orders", value=JSONSerializer(JSON_SCHEMA, registry))
    with pytest.raises(MessageRefused, match="it violates the schema at properties/id/type"):
        topic.message({"id": "secret"})


def test_a_registry_that_refuses_is_repeated() -> None:
    class Refusing:
        def __call__(self, _obj: object, _ctx: SerializationContext) -> bytes:
            raise SchemaRegistryError(409, 409, "Schema being registered is incompatible")

    with pytest.raises(MessageRefused, match="the schema registry answered: Schema being registered is incompatible"):
        TypedTopic[bytes, object]("orders", value=Refusing()).message(1)


def test_a_registry_that_does_not_answer_loses_no_payload() -> None:
    away = SchemaRegistryClient({"url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(MessageRefused, match="ConnectError"):
        TypedTopic[bytes, Any]("orders", value=AvroSerializer(away, AVRO)).message(ORDER)
