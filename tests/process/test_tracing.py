"""The trace of whoever publishes travels in the headers of the message, and in no other way touches it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import baggage, context, propagate
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outbox import Message
from outbox._publish import tracing
from outbox._publish.tracing import with_trace

TRACER = TracerProvider().get_tracer("tests")
FULL = Message("orders", b"value", b"key", headers={"type": "created"}, partition=1, timestamp=2)


def headers(message: Message) -> dict[str, bytes | None]:
    """The headers by name; no name may be there twice."""
    found = message.header_list()
    assert len(dict(found)) == len(found)
    return dict(found)


@contextmanager
def within(entered: context.Context) -> Iterator[None]:
    token = context.attach(entered)
    try:
        yield
    finally:
        context.detach(token)


def test_without_a_span_the_message_stays_the_same_object() -> None:
    assert with_trace(FULL) is FULL


def test_the_current_span_is_in_the_header() -> None:
    with TRACER.start_as_current_span("order") as span:
        found = with_trace(FULL)
    current = span.get_span_context()
    assert headers(found) == {
        "type": b"created",
        "traceparent": f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags:02x}".encode(),
    }
    assert (found.topic, found.value, found.key, found.partition, found.timestamp) == ("orders", b"value", b"key", 1, 2)


def test_the_state_of_the_trace_travels_too() -> None:
    incoming = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "shop=1"}
    with within(propagate.extract(incoming)):
        found = headers(with_trace(FULL))
    assert found == {"type": b"created", **{name: value.encode() for name, value in incoming.items()}}


@pytest.mark.parametrize("theirs", ["traceparent", "tracestate"])
def test_a_trace_that_the_user_set_himself_wins_as_a_whole(theirs: str) -> None:
    own = Message("orders", b"v", headers=[(theirs, b"mine")])
    with within(propagate.extract({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "shop=1"})):
        assert with_trace(own) is own


def test_baggage_travels_beside_a_trace_of_the_users_own() -> None:
    own = Message("orders", b"v", headers=[("traceparent", b"mine"), ("twice", b"1"), ("twice", b"2")])
    with within(baggage.set_baggage("tenant", "north")):
        assert with_trace(own).header_list() == [*own.header_list(), ("baggage", b"tenant=north")]


def test_a_context_without_anything_to_tell_adds_nothing() -> None:
    with within(context.set_value("of the application", 1)):
        assert with_trace(FULL) is FULL


def test_a_tombstone_keeps_being_one() -> None:
    with TRACER.start_as_current_span("order"):
        found = with_trace(Message("orders", None, b"key"))
    assert found.value_bytes() is None
    assert "traceparent" in headers(found)


class Failing(TextMapPropagator):
    fields: set[str] = set()  # noqa: RUF012 - as the base class has it

    def extract(self, *_args: object, **_more: object) -> context.Context:
        return context.Context()

    def inject(self, *_args: object, **_more: object) -> None:
        raise RuntimeError("secret of the span")


def test_failing_propagator_loses_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    both = CompositePropagator([TraceContextTextMapPropagator(), Failing()])
    monkeypatch.setattr(tracing, "_opentelemetry", lambda: tracing._OpenTelemetry(context.get_current, both.inject))
    with TRACER.start_as_current_span("order"):
        assert "traceparent" in headers(with_trace(FULL))
    (record,) = caplog.records
    assert "RuntimeError" in record.getMessage()
    assert "secret" not in record.getMessage()


WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
from outbox import Message
from outbox._publish.tracing import with_trace

message = Message("orders", b"v")
assert with_trace(message) is message
assert with_trace(message) is message
"""


def test_without_opentelemetry_nothing_is_added() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=60)
