"""Add the caller's trace context to a message as headers: `traceparent`, `tracestate` and others.

Without opentelemetry-api (extra `opentelemetry`) nothing is added. OpenTelemetry's setting `OTEL_PROPAGATORS` selects
the headers. The half carries them like headers of the application, so that they reach the real topic.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from outbox.errors import UsageError
from outbox.message import Message
from outbox.protocol.half import Header

log = logging.getLogger("outbox")

_ONE_UNIT = frozenset({"traceparent", "tracestate"})
"""W3C Trace Context: the two headers belong together, so both come from the same source."""


class _OpenTelemetry(NamedTuple):
    current_context: Callable[[], object]
    inject: Callable[[dict[str, str]], None]


@cache
def _opentelemetry() -> _OpenTelemetry | None:
    """Return the functions of opentelemetry-api; None if it is not installed. Import it once."""
    try:
        from opentelemetry import context, propagate  # noqa: PLC0415 - it is optional
    except ImportError:
        return None
    return _OpenTelemetry(context.get_current, propagate.inject)


def with_trace(message: Message) -> Message:
    """Return a message with the headers of the current trace; the same message if there is no trace.

    Headers that the message already has are kept. The call takes less than 1 µs when no context is active.
    """
    _require_message(message)
    found = _opentelemetry()
    if found is None or not found.current_context():
        return message
    trace = _trace_headers(found)
    if not trace:
        return message
    headers = message.header_list()
    added = _not_present(trace, {name for name, _ in headers})
    return replace(message, headers=[*headers, *added]) if added else message


def with_traces(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages with the headers of the current trace; the same ones if there is no trace."""
    for message in messages:
        _require_message(message)
    found = _opentelemetry()
    if found is None or not found.current_context():
        return messages
    return [with_trace(message) for message in messages]


def _require_message(given: object) -> None:
    if not isinstance(given, Message):
        raise UsageError(
            f"{type(given).__name__} is no Message. Give publish() one Message, and publish_many() a list of them."
        )


def _trace_headers(opentelemetry: _OpenTelemetry) -> dict[str, str]:
    carrier: dict[str, str] = {}
    try:
        opentelemetry.inject(carrier)
    except Exception as error:  # noqa: BLE001 - an error of a propagator must not lose a message
        log.warning("Trace headers omitted: OpenTelemetry's propagator raised %s", type(error).__name__)
    return carrier


def _not_present(trace: dict[str, str], present: set[str]) -> list[Header]:
    taken = present | _ONE_UNIT if present & _ONE_UNIT else present
    return [(name, value.encode()) for name, value in trace.items() if name not in taken]
