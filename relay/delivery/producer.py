"""A producer for whole batches: which records were not delivered, and what its log reports."""

import logging
import math
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox._failpoints import failpoint
from outbox._kafka.admin import checked_properties
from outbox._kafka.client_log import Repeats, is_first_wait
from outbox._kafka.produce import produce
from outbox.protocol.record import Record
from relay.delivery.call_watch import calling
from relay.delivery.error_policy import TIME_OUTS, Fault, Remedy, Step, Undelivered, remedy

SETTINGS: dict[str, str | int | bool] = {
    "acks": "all",
    "batch.size": 1_000_000,  # lowered for topics that take less, see relay.batch_size
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

UNENDED = (
    ". Kafka has not written the end of the former transaction yet, as for some seconds after a broker started. If it "
    "lasts, bring back the brokers of its topics; change no min.insync.replicas while a partition has no leader"
)

FENCE_SECONDS = 0.1
"""Of one call that fences; another one follows."""

FLUSH_MARGIN_SECONDS = 5.0
"""Every record is reported on within `message.timeout.ms`; a flush waits longer."""

FLUSH_LOOK_SECONDS = 1.0
"""Between two looks at whether a flush makes progress."""

_repeats = Repeats()

log = structlog.get_logger()


class DeliveryError(Exception):
    """A batch whose outcome is not known to be a commit: make a fresh producer, read `committed()`."""

    def __init__(
        self,
        message: str,
        remedy: Remedy = Remedy.REBUILD,
        undelivered: Sequence[Undelivered] = (),
        cause: KafkaError | None = None,
    ) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.undelivered = undelivered
        self.cause = cause

    @property
    def timed_out(self) -> bool:
        return any(found.error.code() in TIME_OUTS for found in self.undelivered)

    @property
    def fenced(self) -> bool:
        """Whether another owner is there: give the partition up until the group has a new generation."""
        return self.remedy is Remedy.GIVE_UP


def delivery_error(step: Step, error: KafkaError, undelivered: Sequence[Undelivered] = ()) -> DeliveryError:
    """Return what becomes of an error that is not tried again, or no longer."""
    what = remedy(Fault.of(error), step)
    if what is Remedy.RETRY:
        what = Remedy.REBUILD
    advice = UNENDED if step is Step.TAKE_OVER and error.code() == KafkaError.CONCURRENT_TRANSACTIONS else ""
    return DeliveryError(f"{step} failed: {error.name()}: {error.str()}{advice}", what, undelivered, error)


DEBUG = "broker"
"""Debug context of librdkafka in which it logs each lost connection.

Its log has no third line for an error of a connection that comes again within 30 s (`rd_kafka_broker_set_error`).
"""


class ClientLog:
    """Takes a producer's log lines for librdkafka's `logger`, and notes those of a lost connection or answer.

    After such a line a request may have been sent twice, although its call succeeded (R17).
    """

    _TROUBLE = frozenset({"FAIL", "REQTMOUT"})
    _ENDED = "(_DESTROY"
    """In the debug line of a connection that the client itself has ended."""
    _LEFT = re.compile(r".*Sending TERMINATE to \S+/\d+$")
    """The debug line of a broker that is in the cluster's metadata no longer; its address is no bootstrap one's."""
    _CONNECTS = re.compile(r"\[thrd:TxnCoordinator\].*Connecting to .*:(\d+) \(.*\) with socket (\d+)")

    def __init__(self, *, debug: bool = False) -> None:
        self.trouble = self.timed_out = self.broker_left = False
        self.coordinator: tuple[int, int] | None = None
        """Port and socket of the newest connection to the transaction coordinator."""
        self._least = logging.DEBUG if debug else logging.INFO
        self._since = time.monotonic()

    def log(self, level: int, _form: str, facility: str, client: str, text: str) -> None:
        """Take a log line; called by confluent-kafka while the producer is polled."""
        self.trouble = self.trouble or (facility in self._TROUBLE and self._ENDED not in text)
        self.timed_out = self.timed_out or facility == "REQTMOUT"
        self.broker_left = self.broker_left or (facility == "DESTROY" and self._LEFT.match(text) is not None)
        if facility == "CONNECT" and (found := self._CONNECTS.match(text)):
            self.coordinator = int(found[1]), int(found[2])
        if level < self._least:
            return
        who, _, _ = client.partition("#")  # the next producer of the same owner has the next number
        passed = 0 if self._least == logging.DEBUG else _repeats.passed(f"{who} {facility}", text)
        if passed is None:
            return
        say = log.warning if level >= logging.WARNING else log.info
        # CONFWARN: a property of the consumer, given for all clients
        if facility == "CONFWARN" or is_first_wait(facility, text, self._since):
            say = log.debug
        more = {"more_like_it": passed} if passed else {}
        say("Producer error", client=client, facility=facility, text=text, **more)


class BatchProducer:
    """A producer for whole batches.

    Use `client` through this object only, and bind it to no local name: the frames of an error that is kept would keep
    it alive. Where a broker has left the cluster, a thread of each client uses a whole processor (R79).
    """

    def __init__(self, config: Mapping[str, str | int | bool]) -> None:
        contexts = str(config.get("debug", ""))
        self.client_log = ClientLog(debug=bool(contexts))
        self._undelivered: list[Undelivered] = []
        self._closed = False
        self._flush_seconds = int(config["message.timeout.ms"]) / 1_000 + FLUSH_MARGIN_SECONDS
        with checked_properties():
            # Lost connections are in its log only, not in the error callback.
            debug = f"{contexts},{DEBUG}" if contexts else DEBUG
            telling = {"log.connection.close": True, "debug": debug, "log_level": 7, "logger": self.client_log}
            self.client = Producer({**config, "on_delivery": self._report, **telling})

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._undelivered.append(Undelivered(message.topic() or "", error))

    def produce(self, records: Iterable[Record]) -> None:
        first = True
        for record in records:
            try:
                produce(self.client, record)
            except KafkaException as error:
                self.client.flush(self._flush_seconds)  # the reports on earlier records name the cause
                self._undelivered.append(Undelivered(record.topic, error.args[0]))
                raise self._failure(Step.PRODUCE) from error
            if first:
                failpoint("relay.kafka.producer")
                first = False

    def flush(self) -> None:
        """Wait until all is acknowledged, at most 5 s longer than `message.timeout.ms`."""
        deadline, before = time.monotonic() + self._flush_seconds, math.inf
        with calling(Step.FLUSH) as call:
            while (left := self.client.flush(FLUSH_LOOK_SECONDS)) and time.monotonic() < deadline:
                if left < before:
                    call.progressed()
                before = left
        if self._undelivered:
            raise self._failure(Step.FLUSH)
        if left:
            seconds = round(self._flush_seconds)
            raise DeliveryError(f"{left} messages were not acknowledged within {seconds} s", Remedy.ABORT)

    @contextmanager
    def fatal_errors(self) -> Iterator[None]:
        """Turn a fatal error, in whichever way confluent-kafka raises it, into a DeliveryError.

        Whatever serves callbacks may raise it: flush, poll, commit. confluent-kafka sets its exception, and then calls
        back all the same: what comes out is the interpreter's own SystemError then, with or without the cause.
        """
        try:
            yield
        except KafkaException as error:
            raise delivery_error(Step.LISTEN, error.args[0]) from error
        except SystemError as error:
            raise self._fatal_error() from error

    def _failure(self, step: Step) -> DeliveryError:
        """Return what the first report means; one that is only "fatal" leaves open whether another owner is there."""
        cause = self._undelivered[0].error
        is_silent = cause.code() == KafkaError._FATAL  # noqa: SLF001 - librdkafka's own codes carry an underscore
        return self._fatal_error() if is_silent else delivery_error(step, cause, self._undelivered)

    def _fatal_error(self) -> DeliveryError:
        try:
            self.client.begin_transaction()
        except KafkaException as error:
            return delivery_error(Step.LISTEN, error.args[0])
        return DeliveryError("the producer failed without an error code")

    def take_over(self, seconds: float) -> None:
        """Fence the predecessor; Kafka refuses that until it has ended what it left open.

        librdkafka asks again after half a second by itself, and at once where it is called again.
        """
        self.client.init_transactions(min(seconds, FENCE_SECONDS))

    def abort(self, seconds: float) -> None:
        self.client.abort_transaction(seconds)

    def listen(self) -> bool:
        """Serve librdkafka's log, and return whether it reports trouble since the last time."""
        self.client.poll(0)
        trouble, self.client_log.trouble = self.client_log.trouble, False
        return trouble

    def saw_broker_leave(self) -> bool:
        """Return whether a broker has left the cluster since this producer was made: it is of no further use (R79).

        librdkafka goes on to take that broker for the group's coordinator. `send_offsets_to_transaction` then waits
        without any time limit (librdkafka #5456, #5511), and the thread of that broker never rests.
        """
        self.client.poll(0)
        return self.client_log.broker_left

    def wake(self) -> None:
        """Break the connection to the transaction coordinator, which librdkafka makes again at once (R79).

        librdkafka asks who coordinates the group only when a connection comes or goes. While it waits for that, this
        connection is idle. Another thread than that of the call does it.
        """
        with suppress(KafkaException, SystemError, AttributeError):  # the call raises it, too, or it is closed
            self.client.poll(0)  # its log has the newest connection
        if self.client_log.coordinator is None:
            return
        port, number = self.client_log.coordinator
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:  # it may be closed by now
            if connection.getpeername()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)

    def take_timed_out(self) -> bool:
        """Return whether librdkafka's log reports a request that timed out since the last call."""
        timed_out, self.client_log.timed_out = self.client_log.timed_out, False
        return timed_out

    def close(self) -> None:
        """Let the producer go without waiting; again, it does nothing."""
        if self._closed:
            return
        self._closed = True
        with suppress(KafkaException):
            self.client.purge()
        del self.client
