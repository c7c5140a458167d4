"""Connect to Kafka: one idempotent producer, and one thread that polls it for delivery reports; the circuit."""

import atexit
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import UNKNOWN_CAUSE, admin_client, cause_of, checked_properties, reconnecting, takes_records
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.client_log import logged
from outbox._kafka.forks import abandon, follow
from outbox._kafka.topic_cache import KnownTopics
from outbox._publish.acceptance import closed
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox._rules.topic_description import TopicDescription
from outbox.errors import ConfigurationError, KafkaUnreachable, OutboxError, PublishFailed, UsageError
from outbox.recorder import Recorder, guarded
from outbox.settings import HalfSettings

T = TypeVar("T")

_IDLE_SECONDS = 10.0


class Enquiries:
    """Runs functions in a thread that starts with the first one and ends after 10 s without any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._urgent: deque[tuple[Hashable, Callable[[], Any]]] = deque()
        self._patient: deque[tuple[Hashable, Callable[[], Any]]] = deque()
        self._open: dict[Hashable, Future[Any]] = {}
        self._closed = threading.Event()

    def ask(self, question: Hashable, function: Callable[[], T], *, urgent: bool = True) -> Future[T]:
        """Run a function that sends a request, urgent ones first; return the future of the same pending question."""
        with self._changed:
            if self._closed.is_set():
                raise UsageError("The outbox is closed. Create a new one.")
            if question in self._open:
                return self._open[question]
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="outbox-enquiries", daemon=True)
                thread.start()
                self._thread = thread
            future: Future[T] = Future()
            self._open[question] = future
            (self._urgent if urgent else self._patient).append((question, function))
            self._changed.notify()
        return future

    def closed(self, seconds: float = 0.0) -> bool:
        return self._closed.wait(seconds)

    def close(self) -> None:
        """Fail the pending questions. A running function continues to its end; its answer is dropped."""
        with self._changed:
            self._closed.set()
            self._changed.notify()
            self._urgent.clear()
            self._patient.clear()
            given_up, self._open = self._open, {}
        for future in given_up.values():
            future.set_exception(UsageError("The outbox is closed. Create a new one."))

    def _run(self) -> None:
        while (job := self._next()) is not None:
            question, function = job
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = function()
            except BaseException as raised:  # noqa: BLE001 - it is raised to the waiting caller
                error = raised
            with self._changed:
                future = self._open.pop(question, None)  # None after close()
            if future is None:
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)

    def _next(self) -> tuple[Hashable, Callable[[], Any]] | None:
        """Wait for the next question; return None to end the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._patient or self._closed.is_set(), _IDLE_SECONDS)
            for queue in (self._urgent, self._patient):
                if queue:
                    return queue.popleft()
            self._thread = None
            return None


@dataclass(frozen=True, slots=True)
class _Opening:
    at: float  # s, monotonic
    clock: str
    cause: str


class Circuit:
    """A circuit breaker that threads share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered_at = -math.inf
        self._opening: _Opening | None = None

    def require_closed(self) -> None:
        """Refuse a publication while the circuit is open, without waiting."""
        opening = self._opening
        if opening is not None:
            raise PublishFailed(
                f"The circuit is open: Kafka has not answered since {opening.clock} "
                f"({time.monotonic() - opening.at:.0f} s ago). Nothing was sent. Roll the local transaction back and "
                "try again later (HTTP: 503 with Retry-After). The circuit closes by itself when Kafka answers. First "
                f"failure: {opening.cause}"
            )

    def answered(self) -> None:
        self._answered_at = time.monotonic()

    def failed(self, since: float, cause: str) -> bool:
        """Open the circuit unless Kafka has answered since (monotonic seconds); return whether this call opened it."""
        with self._lock:
            if self._opening is not None or self._answered_at >= since:
                return False
            clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._opening = _Opening(time.monotonic(), clock, cause)
            return True

    def close(self) -> float | None:
        """Close the circuit; return the seconds for which it was open, None if it was not."""
        with self._lock:
            self.answered()
            opening, self._opening = self._opening, None
        return None if opening is None else time.monotonic() - opening.at


log = logging.getLogger("outbox")

CLOSE_SECONDS = 5.0
"""Default of how long `close()` waits for op markers."""
POLL_SECONDS = 0.1

_REQUEST_SECONDS = 5.0
"""Time limit for one request, unless `publish_timeout_seconds` is longer; callers wait at most that long."""

_PROBE_SECONDS = 1.0
"""Time limit for a leader's answer to a probe."""

_PROBE_PAUSE_SECONDS = 0.25


class Connection:
    """The library's connection to Kafka, opened at the first publication and shared by all threads.

    Callers send no requests to the cluster themselves: they wait, within their budget, for answers to `Enquiries`. A
    forked child starts with no connection (R46).
    """

    def __init__(self, settings: HalfSettings, recorder: Recorder | None = None) -> None:
        self.recorder = guarded(recorder)
        self._settings = settings
        self._closed = False
        self._begin()
        follow(self)

    def _begin(self) -> None:
        """Set the initial state: no client, no thread, a free lock."""
        self._lock = threading.Lock()  # never held during a request to the cluster
        self._producer: Producer | None = None
        self._channel: ChannelDescription | None = None
        self._topics: KnownTopics | None = None
        self._floors: dict[
            tuple[str, int], int
        ] = {}  # by half topic's id and partition: next offset after the acknowledged ones
        self._admin: AdminClient | None = None
        self._enquiries = Enquiries()
        self._circuit = Circuit()

    def start_afresh(self) -> None:
        """Reset in a forked child. Messages in the parent's producer are sent by the parent (R46)."""
        abandon(self._producer, self._admin)
        self._begin()

    @property
    def channel(self) -> ChannelDescription:
        if self._channel is None:
            self.connect(self.budget())
        channel = self._channel
        self.require_open()
        if channel is None:  # reset by another thread after connect()
            raise PublishFailed("The channel was recreated. Roll the local transaction back and try again.")
        return channel

    @property
    def max_half_bytes(self) -> int:
        """Maximum size of a half, bytes: the limit of the half topic or of the client (`message.max.bytes`)."""
        return self._max_half_bytes(self.channel)

    def _max_half_bytes(self, channel: ChannelDescription) -> int:
        limit = channel.half.max_record_bytes
        return min(limit, int(self._settings.kafka.get("message.max.bytes", limit)))

    def budget(self, waiting: Waiting = BLOCKING) -> Budget:
        return Budget(waiting, self._settings.publish_timeout_seconds)

    def connect(self, budget: Budget) -> None:
        """Connect and describe the channel, if not done yet, after a fatal error or a recreated half topic."""
        if self._producer is None or self._channel is None:
            self.require_answering()
            self._answer("connection", self._start, budget)

    def real_topic(self, name: str, budget: Budget) -> TopicDescription | None:
        """Return the description of a real topic, cached if possible; None if the topic does not exist."""
        self.require_answering()
        self.connect(budget)
        topics = self._known_topics()
        topic = topics.usable(name)
        if topic is None:
            return self.real_topic_now(name, budget)
        if topics.is_due(name):
            self._enquiries.ask(f"topic {name}", lambda: self._renew(topics, name), urgent=False)
        return topic

    def real_topic_now(self, name: str, budget: Budget) -> TopicDescription | None:
        """Ask the cluster for the description of a real topic; return None if the topic does not exist."""
        topics = self._known_topics()
        return self._answer(f"topic {name}", lambda: topics.ask(name), budget)

    def _known_topics(self) -> KnownTopics:
        if self._topics is None:
            raise closed()
        return self._topics

    def _reset_channel(self) -> None:
        with self._lock:
            if not self._closed:
                self._channel, self._topics, self._floors = None, self._no_topics(), {}

    def _no_topics(self) -> KnownTopics:
        timeout = max(_REQUEST_SECONDS, self._settings.publish_timeout_seconds)
        return KnownTopics(self._admin_client(), timeout, [self._settings.channel.half_topic])

    def _renew(self, topics: KnownTopics, name: str) -> TopicDescription | None:
        """Refresh the description of a topic; the old one is used until then."""
        try:
            return topics.ask(name)
        except OutboxError as error:
            log.warning("Topic %s could not be refreshed, its last description is used: %s", name, error)
            raise

    def _answer(self, question: str, function: Callable[[], T], budget: Budget) -> T:
        """Wait for the answer to an enquiry; without one, open the circuit and fail the publication."""
        began = time.monotonic()
        try:
            return budget.result(self._enquiries.ask(question, function))
        except TimeoutError:
            silence = f"no answer about the {question} within {self._settings.publish_timeout_seconds:g} s"
            reason, advice = cause_of(self._admin) or (silence, UNKNOWN_CAUSE)
            cause = f"Kafka does not answer ({reason}). {advice}."
        except KafkaUnreachable as error:
            cause = str(error)
        except (ConfigurationError, UsageError) as error:
            raise type(error)(str(error)) from error  # callers share the answer, but not its traceback
        self.unanswered(began, cause)
        raise PublishFailed(f"{cause} Roll the local transaction back and try again.")

    # --- the circuit

    def require_answering(self) -> None:
        """Refuse a publication while the circuit is open, without waiting."""
        self.require_open()
        self._circuit.require_closed()

    def require_open(self) -> None:
        """Refuse a publication after `close()`."""
        if self._closed:
            raise closed()

    def answered(self) -> None:
        """Record that Kafka acknowledged a half."""
        self._circuit.answered()

    def unanswered(self, since: float, cause: str) -> None:
        """Record that Kafka did not answer a request sent at `since`; open the circuit unless it answered later."""
        if self._closed or not self._circuit.failed(since, cause):
            return
        log.warning("Circuit opened, publications fail at once until Kafka answers: %s", cause)
        self.recorder.circuit_opened(self._settings.service)
        with suppress(UsageError):  # the outbox was closed
            self._enquiries.ask(object(), self._probe)  # a question of its own: the one before may be just ending

    def _probe(self) -> None:
        """Probe the cluster until it accepts halves again, then close the circuit."""
        while not self._takes_halves():
            if self._enquiries.closed(_PROBE_PAUSE_SECONDS):
                return
        if not self._closed and (seconds := self._circuit.close()) is not None:
            log.warning("Circuit closed after %.1f s, Kafka answers", seconds)
            self.recorder.circuit_closed(self._settings.service)

    def _takes_halves(self) -> bool:
        try:
            half = self._described_channel().half
        except KafkaUnreachable:
            return False
        except OutboxError:
            return True  # Kafka answers; the next publication raises the error
        return takes_records(self._admin_client(), half, _PROBE_SECONDS)

    def ping(self, waiting: Waiting = BLOCKING) -> None:
        """Check that Kafka answers and the channel exists."""
        self.require_answering()
        budget = Budget(waiting, self._settings.publish_timeout_seconds)
        if self._producer is None:
            self.connect(budget)
        else:
            self._answer("channel", self._described_channel, budget)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Flush op markers for at most `timeout` seconds, and release the producer."""
        with self._lock:
            producer, self._producer, self._closed = self._producer, None, True
        atexit.unregister(self.close)
        self._enquiries.close()
        self._admin = self._topics = None  # without references the client closes its connections
        if producer is not None:
            left = producer.flush(timeout)
            if left:
                self.recorder.ops_dropped(self._settings.service, left)
                log.warning("%d op marker(s) not sent before close, the checker will decide", left)

    # --- clients and threads

    def _live_producer(self) -> Producer:
        producer = self._producer
        if producer is None:
            raise PublishFailed("The connection to Kafka was lost. Roll the local transaction back and try again.")
        return producer

    def _drop_if_fatal(self, producer: Producer, error: KafkaError) -> None:
        """Drop the producer after a fatal error; the next publication creates a new one."""
        if error.code() == KafkaError._FATAL:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            with self._lock:
                if self._producer is producer:
                    self._producer = None

    def _described_channel(self) -> ChannelDescription:
        timeout = max(_REQUEST_SECONDS, self._settings.publish_timeout_seconds)
        return verify_channel(self._admin_client(), self._settings.channel, timeout)

    def _start(self) -> None:
        """Connect, and describe the channel. It runs in the thread of the enquiries only."""
        if self._producer is not None and self._channel is not None:
            return
        channel = self._described_channel()
        producer = self._producer or _new_producer(self._settings, self._max_half_bytes(channel))
        with self._lock:
            if self._closed:
                return
            is_new = self._producer is not producer
            self._channel, self._topics, self._producer = channel, self._topics or self._no_topics(), producer
        if is_new:
            threading.Thread(target=self._poll, args=(producer,), name="outbox-sender", daemon=True).start()
            atexit.register(self.close)

    def _admin_client(self) -> AdminClient:
        """Return the admin client, created at the first call in a process."""
        if self._admin is None:
            self._admin = admin_client(self._settings.kafka)
        return self._admin

    def _serve(self, producer: Producer) -> None:
        """Serve delivery reports, and wait a moment for more."""
        producer.poll(POLL_SECONDS)

    def _poll(self, producer: Producer) -> None:
        while self._producer is producer:
            try:
                self._serve(producer)
            except Exception:  # of one delivery report; the thread must continue with the others
                log.exception("Delivery report failed")


def _new_producer(settings: HalfSettings, max_bytes: int) -> Producer:
    with checked_properties():
        return Producer(
            {
                "linger.ms": 0,  # a transaction waits for its halves; under load batches form without lingering
                **logged(reconnecting(settings.kafka)),
                "message.max.bytes": max_bytes,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(settings.publish_timeout_seconds * 1000),
            }
        )
