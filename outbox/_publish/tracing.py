"""The trace context of whoever publishes, as headers of the message: `traceparent`, `tracestate`, what else is set up.

Without opentelemetry-api (extra `opentelemetry`) nothing is added. Which headers there are is OpenTelemetry's own
setting (`OTEL_PROPAGATORS`). The half carries them as the user's own headers, so that they reach the real topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from outbox.message import Message
from outbox.protocol.half import Header

log = logging.getLogger("outbox")

_ONE_UNIT = frozenset({"traceparent", "tracestate"})
"""W3C Trace Context: the second says more of the first, so they come from one hand."""


class _OpenTelemetry(NamedTuple):
    current_context: Callable[[], object]
    inject: Callable[[dict[str, str]], None]


@cache
def _opentelemetry() -> _OpenTelemetry | None:
    """What is needed of opentelemetry-api, if it is installed; looked for once."""
    try:
        from opentelemetry import context, propagate  # noqa: PLC0415 - it is optional
    except ImportError:
        return None
    return _OpenTelemetry(context.get_current, propagate.inject)


def with_trace(message: Message) -> Message:
    """A message with the headers of the current trace; the same message if there is no trace.

    A header that the message already has wins. Costs less than a microsecond when no context is active.

    Args:
        message: As it was given to `publish()`.
    """
    found = _opentelemetry()
    if found is None or not found.current_context():
        return message
    trace = _trace_headers(found)
    if not trace:
        return message
    headers = message.header_list()
    added = _without_theirs(trace, {name for name, _ in headers})
    return replace(message, headers=[*headers, *added]) if added else message


def _trace_headers(opentelemetry: _OpenTelemetry) -> dict[str, str]:
    carrier: dict[str, str] = {}
    try:
        opentelemetry.inject(carrier)
    except Exception as error:  # noqa: BLE001 - a propagator is anybody's code, and no reason to lose a message
        log.warning("the message goes without trace headers: %s in OpenTelemetry's propagator", type(error).__name__)
    return carrier


def _without_theirs(trace: dict[str, str], theirs: set[str]) -> list[Header]:
    taken = theirs | _ONE_UNIT if theirs & _ONE_UNIT else theirs
    return [(name, value.encode()) for name, value in trace.items() if name not in taken]
