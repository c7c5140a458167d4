"""An order in Avro, JSON Schema and Protobuf, with serializers and deserializers for a Schema Registry."""

from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto  # type: ignore[import-untyped]  # ships no types
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]  # ships no types
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]  # ships no types

from outbox.protocol.half import Headers

AVRO = """{
  "type": "record", "name": "Order",
  "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
}"""

JSON_SCHEMA = """{
  "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
  "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]
}"""

ORDER = {"id": 42, "name": "Zoë"}


def _protobuf_class() -> Any:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=1)
    message.field.add(name="name", number=2, type=FieldDescriptorProto.TYPE_STRING, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ProtobufOrder = _protobuf_class()


def _json_serializer(registry: SchemaRegistryClient, conf: dict[str, Any]) -> Any:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer  # noqa: PLC0415 - it takes 2 s to import

    return JSONSerializer(JSON_SCHEMA, registry, conf=conf)


def _json_deserializer(registry: SchemaRegistryClient) -> Any:
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer  # noqa: PLC0415 - as above

    return JSONDeserializer(None, schema_registry_client=registry)


class Schema(NamedTuple):
    """An order in one format. `serializer`: makes a serializer, given a registry and its configuration."""

    name: str
    serializer: Callable[[SchemaRegistryClient, dict[str, Any]], Any]
    deserializer: Callable[[SchemaRegistryClient], Any]
    value: object
    wrong: object  # something that the schema does not allow; it holds the word "secret"

    def encoded(self, registry: SchemaRegistryClient) -> bytes:
        encoded = self.serializer(registry, {})(self.value, SerializationContext("orders", MessageField.VALUE))
        return bytes(encoded)

    def read(self, registry: SchemaRegistryClient, topic: str, value: bytes | None, headers: Headers) -> object:
        context = SerializationContext(topic, MessageField.VALUE, list(headers))
        return self.deserializer(registry)(value, context)


SCHEMAS = [
    Schema(
        "avro",
        lambda registry, conf: AvroSerializer(registry, AVRO, conf=conf),
        AvroDeserializer,
        ORDER,
        {"id": "secret"},
    ),
    Schema("json", _json_serializer, _json_deserializer, ORDER, {"id": "secret"}),
    Schema(
        "protobuf",
        lambda registry, conf: ProtobufSerializer(ProtobufOrder, registry, conf),
        lambda registry: ProtobufDeserializer(ProtobufOrder, schema_registry_client=registry),
        ProtobufOrder(**ORDER),
        "secret",
    ),
]


def new_registry() -> SchemaRegistryClient:
    return SchemaRegistryClient.new_client({"url": "mock://"})


def decoder(name: str) -> Any:
    """A deserializer with a registry of its own that has the schema, as in a worker of Spark."""
    registry, schema = new_registry(), next(one for one in SCHEMAS if one.name == name)
    schema.encoded(registry)
    decode = schema.deserializer(registry)
    if name != "protobuf":
        return decode
    return lambda *given: (one := decode(*given)) and {field.name: value for field, value in one.ListFields()}
