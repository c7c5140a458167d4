"""Check-back: requests about overdue transactions of one half partition, to the checker and to listeners."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox._kafka.admin import checked_properties
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.names import Channel
from relay import metrics
from relay.half.kafka.half_reader import PartitionReaders
from relay.half.ledger.ledger import Ledger
from relay.half.state.check_schedule import first_half

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


class CheckBack:
    """Sends the check requests that a ledger makes."""

    def __init__(self, ledger: Ledger, checks: CheckSender, readers: PartitionReaders) -> None:
        self._ledger = ledger
        self._checks = checks
        self._readers = readers

    def ask(self, now: int, most: int) -> None:
        """Send so many requests at most about transactions that are overdue; the others stay due."""
        requests = self._ledger.take_due(now, min(most, self._checks.room()))
        ready = [request for request in requests if not _lacks_message(request)]
        ready += self._with_messages([request for request in requests if _lacks_message(request)])
        if ready:
            self._checks.ask(ready)
            metrics.CHECKS.labels().inc(len(ready))

    def _with_messages(self, requests: Sequence[CheckRequest]) -> list[CheckRequest]:
        """Return requests to listeners, with the messages that are not in memory."""
        ledger = self._ledger
        found = [(request, first_half(ledger.find(request.transaction_id), ledger.discards)) for request in requests]
        places = [(request, *place) for request, place in found if place]
        parked = {key: offset for _, key, offset in places if key is not None}
        halves = self._readers.discards.fetch(parked) if parked else {}
        halves |= self._readers.halves.fetch(offset for _, key, offset in places if key is None)
        return [replace(request, message=halves[offset].envelope()) for request, _, offset in places]


def _lacks_message(request: CheckRequest) -> bool:
    """Return whether the request goes to a listener, and its message is not in memory."""
    return request.truth is Truth.LISTENER and request.message is None
