"""A producer that is given whole batches, knows what of them was not delivered, and hears its own complaints."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox.cluster import checked_properties
from outbox.failpoints import failpoint
from outbox.protocol.record import Record
from outbox.service.producing import produce
from relay.remedy import Fault, Remedy, Step, remedy

FLUSH_SECONDS = 15.0

SETTINGS: dict[str, str | int | bool] = {
    "acks": "all",
    "batch.size": 1_000_000,  # lowered for topics that take less, see limit_batches
    "delivery.report.only.error": True,
    "enable.idempotence": True,
    "linger.ms": 1,
    "message.max.bytes": 100_000_000,  # pre-flight compares each message with its own topic's limit
    "message.timeout.ms": 10_000,
    # With re-bootstrap, a transactional producer that loses its last connection waits for a coordinator for ever.
    "metadata.recovery.strategy": "none",
    "partitioner": "murmur2_random",  # the partition that a Java producer would choose
    "queue.buffering.max.messages": 1_000_000,
    "retry.backoff.ms": 1,  # 100, the default, is what a small transaction waits for CONCURRENT_TRANSACTIONS
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 5_000,
    "topic.metadata.propagation.max.ms": 2_000,
}

log = structlog.get_logger()


class DeliveryError(Exception):
    """A batch whose outcome is not known to be a commit: make a fresh producer, read `committed()`.

    Args:
        message: What failed.
        remedy: What to do; never RETRY.
    """

    def __init__(self, message: str, remedy: Remedy = Remedy.REBUILD) -> None:
        super().__init__(message)
        self.remedy = remedy

    @property
    def fenced(self) -> bool:
        """Whether another owner is there: give the partition up until the group has a new generation."""
        return self.remedy is Remedy.GIVE_UP


def delivery_error(step: Step, error: KafkaError) -> DeliveryError:
    """What becomes of an error that is not tried again, or no longer."""
    what = remedy(Fault.of(error), step)
    if what is Remedy.RETRY:
        what = Remedy.REBUILD
    return DeliveryError(f"{step} failed: {error.name()}: {error.str()}", what)


class Complaints:
    """Takes a producer's log lines for librdkafka's `logger`, and notes those that tell of a lost connection or answer.

    After such a line a request may have been sent twice, although its call succeeded (R17).
    """

    _TROUBLE = frozenset({"FAIL", "REQTMOUT"})

    def __init__(self) -> None:
        self.trouble = False

    def log(self, level: int, _form: str, facility: str, client: str, text: str) -> None:
        """Called by confluent-kafka while the producer is polled."""
        self.trouble = self.trouble or facility in self._TROUBLE
        say = log.warning if level >= logging.WARNING else log.info
        if facility == "CONFWARN":  # a property of the consumer, given for all clients
            say = log.debug
        say("producer", client=client, facility=facility, text=text)


class BatchProducer:
    """A producer for whole batches.

    Args:
        config: Its librdkafka properties.

    Raises:
        ConfigurationError: Properties do not go together.
    """

    def __init__(self, config: Mapping[str, str | int | bool]) -> None:
        self.complaints = Complaints()
        self._failed: list[KafkaError] = []
        self._closed = False
        with checked_properties():
            # Only its log tells of lost connections, and only so; the error callback does not.
            telling = {"log.connection.close": True, "log_level": 6, "logger": self.complaints}
            self.client = Producer({**config, "on_delivery": self._report, **telling})

    def _report(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def produce(self, records: Iterable[Record]) -> None:
        """Hand records to librdkafka.

        Raises:
            DeliveryError: One was refused.
        """
        first = True
        try:
            for record in records:
                produce(self.client, record)
                if first:
                    failpoint("relay.producing")
                    first = False
        except KafkaException as error:
            raise self._failure(Step.PRODUCE, error.args[0]) from error

    def flush(self) -> None:
        """Wait until all is acknowledged.

        Raises:
            DeliveryError: A message was not, or not within 15 s.
        """
        left = self.client.flush(FLUSH_SECONDS)
        if self._failed:
            raise self._failure(Step.FLUSH, self._failed[0])
        if left:
            raise DeliveryError(f"{left} messages were not acknowledged within {FLUSH_SECONDS:.0f} s", Remedy.ABORT)

    @contextmanager
    def fatal_errors(self) -> Iterator[None]:
        """Turns a fatal error, in whichever way confluent-kafka raises it, into a DeliveryError.

        Whatever serves callbacks may raise it: flush, poll, commit. confluent-kafka sets its exception, and then calls
        back all the same: what comes out is the interpreter's own SystemError then, with or without the cause.
        """
        try:
            yield
        except KafkaException as error:
            raise delivery_error(Step.LISTEN, error.args[0]) from error
        except SystemError as error:
            raise self._fatal_error() from error

    def _failure(self, step: Step, cause: KafkaError) -> DeliveryError:
        """What a message's error means; one that only says "fatal" does not tell whether another owner is there."""
        is_silent = cause.code() == KafkaError._FATAL  # noqa: SLF001 - librdkafka's own codes carry an underscore
        return self._fatal_error() if is_silent else delivery_error(step, cause)

    def _fatal_error(self) -> DeliveryError:
        """What has befallen the producer: it tells it once more."""
        try:
            self.client.begin_transaction()
        except KafkaException as error:
            return delivery_error(Step.LISTEN, error.args[0])
        return DeliveryError("the producer has failed, and does not say why")

    def listen(self) -> bool:
        """Hear what librdkafka had to say; whether it told of trouble since the last time."""
        self.client.poll(0)
        trouble, self.complaints.trouble = self.complaints.trouble, False
        return trouble

    def close(self) -> None:
        """Let the producer go without waiting; again, it does nothing."""
        if self._closed:
            return
        self._closed = True
        with suppress(KafkaException):
            self.client.purge()
        del self.client
