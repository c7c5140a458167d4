"""The headers of a consumed record."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

from outbox.protocol.half import Header


def headers_of(message: Message) -> tuple[Header, ...]:
    """Return the headers of a consumed record, in their order; empty if it has none."""
    headers: Any = message.headers() or ()  # the stub also allows a dict and text, which consumed messages never have
    return tuple(headers)
