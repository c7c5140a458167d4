"""Sends check requests. One that gets lost is asked again: nothing waits for its acknowledgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox._kafka.admin import checked_properties
from outbox.protocol.check import CheckRequest
from outbox.protocol.names import Channel

QUEUE = 20_000
"""Requests that may wait to be sent: more would only take memory, for they stay due."""

log = structlog.get_logger()


class CheckSender:
    """The producer of the check topic, shared by all partitions of a process."""

    def __init__(self, kafka: Mapping[str, str], channel: Channel) -> None:
        self._topic = channel.check_topic
        with checked_properties():
            self._producer = Producer(
                {
                    "linger.ms": 5,
                    "message.max.bytes": 100_000_000,  # the check topic's own limit decides
                    "message.timeout.ms": 10_000,
                    **kafka,
                    # A request that comes twice does no harm; an idempotent producer may fail for good.
                    "enable.idempotence": False,
                    "on_delivery": _report,
                }
            )

    def room(self) -> int:
        """How many requests more should be sent now."""
        return max(QUEUE - len(self._producer), 0)

    def ask(self, requests: Sequence[CheckRequest]) -> None:
        """Send requests, keyed by service.

        A broker that has just started may answer for a moment that the topic is unknown; librdkafka refuses it then.
        """
        for request in requests:
            try:
                self._producer.produce(self._topic, request.encode(), request.service.encode())
            except BufferError:
                log.warning("Check requests dropped and repeated later: the local queue is full")
                break
            except KafkaException as error:
                log.warning("Check requests refused by Kafka, repeated later", error=error.args[0].str())
                break
        self.poll()  # once: each time others take the interpreter, and give it back when they please

    def poll(self) -> None:
        """Serve delivery reports."""
        self._producer.poll(0)


def _report(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        log.warning("Check request not sent, repeated later", error=error.str())
