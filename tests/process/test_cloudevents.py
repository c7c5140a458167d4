"""CloudEvents in Kafka's binary mode: the headers that the binding names, and the SDK reads them back."""

import datetime as dt
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from cloudevents.core.v1.event import CloudEvent

from outbox import Message, MessageRefused
from outbox.cloudevents import event_message

NOON = dt.datetime(2026, 11, 21, 12, 0, 0, 5, dt.UTC)
REQUIRED = {"id": "7", "source": "/orders", "type": "order.created", "time": NOON}


def event(data: Any = None, **attributes: Any) -> CloudEvent:
    return CloudEvent({**REQUIRED, **attributes}, data)


def read_back(message: Message) -> BaseCloudEvent:
    headers = {name: value or b"" for name, value in message.header_list()}
    return from_kafka_event(KafkaMessage(headers, message.key_bytes(), message.value_bytes() or b""))


def test_attributes_are_headers() -> None:
    made = event_message(
        "orders",
        event(
            {"total": 7},
            datacontenttype="application/json",
            dataschema="https://shop.example/order.json",
            subject="42",
            tenant="nörd",
        ),
    )
    assert made.value == b'{"total":7}'
    assert made.key is None
    assert dict(made.header_list()) == {
        "ce_id": b"7",
        "ce_source": b"/orders",
        "ce_type": b"order.created",
        "ce_specversion": b"1.0",
        "ce_time": b"2026-11-21T12:00:00.000005Z",
        "ce_subject": b"42",
        "ce_dataschema": b"https://shop.example/order.json",
        "ce_tenant": "nörd".encode(),
        "content-type": b"application/json",
    }


def test_the_partition_key_is_the_key() -> None:
    made = event_message("orders", event(partitionkey="42"))
    assert made.key_bytes() == b"42"
    assert dict(made.header_list())["ce_partitionkey"] == b"42"


def test_a_key_that_is_given_wins() -> None:
    assert event_message("orders", event(partitionkey="42"), key=b"\xff").key == b"\xff"
    assert event_message("orders", event(partitionkey="42"), key="").key_bytes() == b""


def test_the_rest_is_passed_on() -> None:
    made = event_message(
        "orders", event(), headers=[("a", "1"), ("a", None)], partition=2, timestamp=3, check_immunity=60
    )
    assert (made.topic, made.partition, made.timestamp, made.check_immunity) == ("orders", 2, 3, 60)
    assert made.header_list()[-2:] == [("a", b"1"), ("a", None)]


@pytest.mark.parametrize(
    ("value", "header"),
    [
        (True, b"true"),
        (False, b"false"),
        (-7, b"-7"),
        (b"\x00\xff", b"AP8="),
        ("x", b"x"),
        (NOON, b"2026-11-21T12:00:00.000005Z"),
    ],
    ids=["true", "false", "number", "bytes", "text", "time"],
)
def test_extensions_are_written_as_the_type_system_says(value: object, header: bytes) -> None:
    assert dict(event_message("orders", event(extension=value)).header_list())["ce_extension"] == header


@pytest.mark.parametrize(
    ("data", "content_type", "value"),
    [
        ({"a": "☃"}, None, '{"a":"☃"}'.encode()),
        ([1, 2], "application/json; charset=utf-8", b"[1,2]"),
        ({"a": 1}, "application/vnd.shop+json", b'{"a":1}'),
        ({"a": 1}, "Application/JSON", b'{"a":1}'),
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        (bytearray(b"x"), "application/avro", b"x"),
        ("<a/>", "text/xml", b"<a/>"),
        (None, None, b""),
    ],
)
def test_data(data: object, content_type: str | None, value: bytes) -> None:
    attributes = {} if content_type is None else {"datacontenttype": content_type}
    assert event_message("orders", event(data, **attributes)).value == value


@pytest.mark.parametrize(
    ("data", "content_type", "says"),
    [
        ({"a": "secret"}, "text/xml", "of type dict, cannot be converted to text/xml"),
        ({"a": math.nan, "b": "secret"}, "application/json", "cannot be converted to JSON: it contains NaN"),
        ({"secret": object()}, "application/json", "of type object"),
    ],
)
def test_data_that_does_not_fit_is_refused_without_being_shown(data: object, content_type: str, says: str) -> None:
    with pytest.raises(MessageRefused, match=says) as refused:
        event_message("orders", event(data, datacontenttype=content_type))
    assert "secret" not in str(refused.value)


def test_a_topic_that_cannot_be_is_refused() -> None:
    with pytest.raises(MessageRefused, match="topic"):
        event_message("no topic", event())


@pytest.mark.parametrize(
    "sent",
    [
        event({"total": 7}, datacontenttype="application/json", subject="42", partitionkey="k"),
        event("text", datacontenttype="text/plain", tenant="nörd"),
        event(b"\xff\x00", datacontenttype="application/octet-stream"),
        event(),
    ],
    ids=["json", "text", "bytes", "no data"],
)
def test_the_sdk_reads_back_what_was_made(sent: CloudEvent) -> None:
    received = read_back(event_message("orders", sent))
    assert received.get_attributes() == sent.get_attributes()
    assert received.get_data() == sent.get_data()


def test_the_sdk_chooses_id_and_time() -> None:
    made = dict(event_message("orders", CloudEvent({"source": "/orders", "type": "t"}, {})).header_list())
    assert made["ce_id"]
    assert made["ce_time"]


WITHOUT = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"cloudevents", "prometheus_client"}:
            raise ModuleNotFoundError(f"No module named {name}", name=name)

sys.meta_path.insert(0, Blocked())
says = {}
for module in ("cloudevents", "prometheus"):
    try:
        __import__(f"outbox.{module}")
    except ModuleNotFoundError as error:
        says[module] = str(error)
print(json.dumps(says))
"""


def test_without_its_extra_a_module_says_which_one() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT], check=True, capture_output=True, text=True, timeout=60)
    assert json.loads(found.stdout) == {
        module: f"outbox.{module} needs an extra. Run pip install 'kafka-transactional-outbox[{extra}]'"
        for module, extra in (("cloudevents", "cloudevents"), ("prometheus", "metrics"))
    }
