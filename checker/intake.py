"""What of the check topic is looked at: requests that can be read, that are recent, and that a row answers."""

from __future__ import annotations

import structlog
from confluent_kafka import KafkaException, Message

from checker import metrics
from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Truth

STALE_MS = 600_000
"""Older requests are dropped: the relay has asked again since."""

log = structlog.get_logger()


def read_request(message: Message, now: int) -> CheckRequest | None:
    """A request that a database can answer; listeners answer for their own.

    Args:
        message: From the check topic.
        now: Time, ms since 1970.

    Raises:
        KafkaException: The consumer cannot go on.
        NewerFormatError: The request is of a newer format.
    """
    error = message.error()
    if error is not None:
        if error.fatal():
            raise KafkaException(error)
        log.warning("consumer", error=error.str())
        return None
    if message.timestamp()[1] < now - STALE_MS:
        metrics.DROPPED.labels("stale").inc()
        return None
    try:
        request = parse_check(message.value())
    except NewerFormatError:
        raise
    except ProtocolError as problem:
        metrics.DROPPED.labels("malformed").inc()
        log.warning("a check request cannot be parsed", offset=message.offset(), error=str(problem))
        return None
    return request if request.truth is Truth.ROW else None
