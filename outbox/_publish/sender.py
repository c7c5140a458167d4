"""Send halves and op markers with one idempotent producer and one thread that polls it for delivery reports."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from outbox._failpoints import failpoint
from outbox._kafka.admin import TopicDescription, admin_client, checked_properties, reconnecting, takes_records
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.client_log import logged
from outbox._kafka.connection_causes import UNKNOWN_CAUSE, cause_of
from outbox._kafka.forks import abandon, follow
from outbox._kafka.known_topics import KnownTopics
from outbox._publish.acks import Acks, Report
from outbox._publish.circuit import Circuit
from outbox._publish.enquiries import Enquiries
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox._receipts.receipt import Ends
from outbox._receipts.visibility import Visibility
from outbox._rules.half_place import HalfPlace
from outbox.errors import ConfigurationError, KafkaUnreachable, OutboxError, PublishFailed, UsageError
from outbox.protocol.half import OutgoingHeaders
from outbox.protocol.op import OpEntry, OpSource, encode_op
from outbox.protocol.partitioner import half_partition
from outbox.recorder import Recorder, guarded
from outbox.settings import Settings

log = logging.getLogger("outbox")

_POLL_SECONDS = 0.1
_FULL_QUEUE_SECONDS = 0.005

_REQUEST_SECONDS = 5.0
"""Time limit for one request, unless `publish_timeout` is longer; callers wait at most `publish_timeout`."""

_PROBE_SECONDS = 1.0
"""Time limit for a leader's answer to a probe."""

_PROBE_PAUSE_SECONDS = 0.25

T = TypeVar("T")


class HalfRecord(NamedTuple):
    """A half message as it is produced."""

    key: bytes | None
    value: bytes | None
    headers: OutgoingHeaders


class Sender:
    """The library's connection to Kafka, opened at the first publication and shared by all threads.

    Callers send no requests to the cluster themselves: they wait, within their budget, for answers to `Enquiries`. A
    forked child starts with no connection (R46).

    Args:
        settings: Settings of the `Outbox`.
        recorder: Receives the outbox's events.
    """

    def __init__(self, settings: Settings, recorder: Recorder | None = None) -> None:
        self.recorder = guarded(recorder)
        self.visibility = Visibility(settings.kafka, settings.channel, self._ends)
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
        """The verified channel.

        Raises:
            ChannelError: Its topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        if self._channel is None:
            self.connect(self.budget())
        channel = self._channel
        if self._closed:
            raise UsageError("The outbox is closed. Create a new one.")
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

    @property
    def rejects(self) -> bool:
        """Whether `reject_transactions` is on (RocketMQ: `rejectTransactionMessage`)."""
        return self._settings.reject_transactions

    def budget(self, waiting: Waiting = BLOCKING) -> Budget:
        """Return the budget for one call of the application: `publish_timeout` in total."""
        return Budget(waiting, self._settings.publish_timeout)

    def connect(self, budget: Budget) -> None:
        """Connect and describe the channel, if not done yet, after a fatal error or after the half topic was recreated.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        if self._producer is None or self._channel is None:
            self.require_answering()
            self._answer("connection", self._start, budget)

    def real_topic(self, name: str, budget: Budget) -> TopicDescription | None:
        """Return the description of a real topic, cached if possible; None if the topic does not exist.

        Args:
            name: Name of the topic.
            budget: Time to wait for the cluster, if the topic is not cached.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
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
        """Ask the cluster for the description of a real topic; return None if the topic does not exist.

        Args:
            name: Name of the topic.
            budget: Time to wait.

        Raises:
            PublishFailed: Kafka does not answer.
        """
        topics = self._known_topics()
        return self._answer(f"topic {name}", lambda: topics.ask(name), budget)

    def _known_topics(self) -> KnownTopics:
        if self._topics is None:
            raise UsageError("The outbox is closed. Create a new one.")
        return self._topics

    def half_place(self, ordering_key: bytes | None, transaction_id: str) -> HalfPlace:
        """Return the half topic, partition and floor offset of a transaction; call it before the first half is sent.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        channel, id_ = self.channel, uuid.UUID(transaction_id).bytes
        partition = half_partition(self._settings.group, ordering_key, id_, channel.partitions)
        ends = self._ends().get(channel.half.name, ())
        floor = max(self._floors.get((channel.half.id, partition), 0), *ends[partition : partition + 1], 0)
        return HalfPlace(channel.half.id, partition, floor)

    def require_same_topic(self, place: HalfPlace, offsets: Sequence[int]) -> None:
        """Refuse to commit a transaction whose half topic was recreated after its halves were sent (R39).

        The channel is described again before the next transaction.

        Args:
            place: The result of `half_place()`.
            offsets: Offsets with which the halves were acknowledged.

        Raises:
            PublishFailed: The half topic is known to have been recreated.
        """
        if not place.holds(offsets, self._half_topic_ids()):
            self._reset_channel()
            raise PublishFailed(
                f"Topic {self._settings.channel.half_topic} was deleted and recreated: its id was {place.topic_id}, "
                f"its end was offset {place.floor}, the first half was stored at offset {min(offsets)}. "
                "Roll the local transaction back and try again."
            )
        at = (place.topic_id, place.partition)
        self._floors[at] = max(self._floors.get(at, 0), max(offsets) + 1)

    def _half_topic_ids(self) -> set[str]:
        """Return the half topic's ids in the channel's and in the newest description; none after a reset."""
        channel, topics = self._channel, self._topics
        if channel is None:
            return set()
        newest = topics.usable(channel.half.name) if topics is not None else None  # None: closed
        return {channel.half.id, (newest or channel.half).id}

    def _reset_channel(self) -> None:
        with self._lock:
            if not self._closed:
                self._channel, self._topics, self._floors = None, self._no_topics(), {}

    def _no_topics(self) -> KnownTopics:
        names, timeout = self._settings.channel, max(_REQUEST_SECONDS, self._settings.publish_timeout)
        return KnownTopics(self._admin_client(), timeout, (names.half_topic, names.op_topic, names.discard_topic))

    def _renew(self, topics: KnownTopics, name: str) -> TopicDescription | None:
        """Refresh the description of a topic; the old one is used until then."""
        try:
            return topics.ask(name)
        except OutboxError as error:
            log.warning("Topic %s could not be refreshed, its last description is used: %s", name, error)
            raise

    def _answer(self, question: str, function: Callable[[], T], budget: Budget) -> T:
        """Wait for the answer to an enquiry; without one, open the circuit and fail the publication.

        Raises:
            PublishFailed: Kafka does not answer.
            OutboxError: As the function.
        """
        began = time.monotonic()
        try:
            return budget.result(self._enquiries.ask(question, function))
        except TimeoutError:
            silence = f"no answer about the {question} within {self._settings.publish_timeout:g} s"
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
        """Refuse a publication while the circuit is open, without waiting.

        Raises:
            PublishFailed: The circuit is open.
            UsageError: The outbox is closed.
        """
        if self._closed:
            raise UsageError("The outbox is closed. Create a new one.")
        self._circuit.require_closed()

    def answered(self) -> None:
        """Record that Kafka acknowledged a half."""
        self._circuit.answered()

    def unanswered(self, since: float, cause: str) -> None:
        """Record that Kafka did not answer a request sent at `since`; open the circuit unless it answered later."""
        if self._closed or not self._circuit.failed(since, cause):
            return
        log.warning("Circuit opened, publications fail at once until Kafka answers: %s", cause)
        self.recorder.circuit_opened(self._settings.group)
        with suppress(UsageError):  # the outbox was closed
            self._enquiries.ask("probe", self._probe)

    def _probe(self) -> None:
        """Probe the cluster until it accepts halves again, then close the circuit."""
        while not self._takes_halves():
            if self._enquiries.closed(_PROBE_PAUSE_SECONDS):
                return
        if self._closed:
            return
        seconds = self._circuit.close()
        log.warning("Circuit closed after %.1f s, Kafka answers", seconds)
        self.recorder.circuit_closed(self._settings.group)

    def _takes_halves(self) -> bool:
        try:
            half = self._described_channel().half
        except KafkaUnreachable:
            return False
        except OutboxError:
            return True  # Kafka answers; the next publication raises the error
        return takes_records(self._admin_client(), half, _PROBE_SECONDS)

    def _ends(self) -> Ends:
        return self._topics.ends if self._topics is not None else {}

    def acks(self) -> Acks:
        """Return a collector for the acknowledgements of one transaction."""
        return Acks(self)

    def produce_half(self, partition: int, half: HalfRecord, acks: Acks, budget: Budget) -> None:
        """Produce a half, without waiting for its acknowledgement.

        Args:
            partition: Half partition of the transaction.
            half: The half.
            acks: Collects the acknowledgement.
            budget: Time to wait while the client's queue is full.

        Raises:
            PublishFailed: The half cannot be sent.
        """
        began = time.monotonic()
        report = acks.expect()
        produced = False
        try:
            while not (produced := self._produced(partition, half, report, budget)) and not budget.is_spent:
                budget.pause(_FULL_QUEUE_SECONDS)  # the polling thread empties the queue
        finally:
            if not produced:
                acks.cancel_last()
        if not produced:
            self.unanswered(began, "the client's queue of halves is full")
            raise PublishFailed(
                "The client's queue of halves is full. The local transaction is rolled back. "
                "Try again, or raise queue.buffering.max.messages."
            )

    def _produced(self, partition: int, half: HalfRecord, report: Report, budget: Budget) -> bool:
        """Return whether the client's queue accepted a half."""
        self.connect(budget)
        producer = self._live_producer()
        topic = self._settings.channel.half_topic
        try:
            producer.produce(topic, half.value, half.key, partition, report, None, 0, half.headers)
        except BufferError:
            return False
        except KafkaException as error:
            self._drop_if_fatal(producer, error.args[0])
            raise PublishFailed(
                f"A half message cannot be sent: {error.args[0].str()}. Roll the local transaction back and try again."
            ) from error
        return True

    def _live_producer(self) -> Producer:
        producer = self._producer
        if producer is None:
            raise PublishFailed("The connection to Kafka was lost. Roll the local transaction back and try again.")
        return producer

    def send_halves(self, partition: int, halves: Sequence[HalfRecord], budget: Budget | None = None) -> list[int]:
        """Produce halves and wait for all acknowledgements.

        Args:
            partition: Half partition of the transaction.
            halves: Halves in the order of their positions.
            budget: Time to wait; None: `publish_timeout`, blocking the thread.

        Returns:
            The offsets of the halves.

        Raises:
            PublishFailed: Not all halves were acknowledged in time and with an offset.
        """
        budget = budget or self.budget()
        acks = self.acks()
        for half in halves:
            self.produce_half(partition, half, acks, budget)
        return acks.offsets(budget)

    def send_op(self, entry: OpEntry, source: OpSource = OpSource.PRODUCER, *, connect: bool = True) -> None:
        """Send an op marker without waiting for its acknowledgement: if it is lost, the checker decides.

        Args:
            entry: The decision.
            source: The role that decided.
            connect: Connect, and wait for that, if there is no connection; otherwise the marker is dropped.
        """
        value, headers = encode_op([entry], source)
        failpoint("outbox.op")
        try:
            if connect:
                self.connect(self.budget())
            self._live_producer().produce(
                self._settings.channel.op_topic,
                value,
                None,
                entry.partition,
                partial(self._report_op, entry.transaction_id),
                None,
                0,
                headers,
            )
        except (BufferError, KafkaException, OutboxError) as error:
            self._op_dropped(entry.transaction_id, str(error))

    def _report_op(self, transaction_id: str, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._op_dropped(transaction_id, error.str())

    def _op_dropped(self, transaction_id: str, reason: str) -> None:
        self.recorder.ops_dropped(self._settings.group, 1)
        log.warning("Op marker of transaction %s not sent, the checker will decide: %s", transaction_id, reason)

    def ping(self, waiting: Waiting = BLOCKING) -> None:
        """Check that Kafka answers and the channel exists.

        Args:
            waiting: How to wait.

        Raises:
            ChannelError: The channel's topics are missing or wrong.
            PublishFailed: Kafka does not answer.
        """
        self.require_answering()
        budget = self.budget(waiting)
        if self._producer is None:
            self.connect(budget)
        else:
            self._answer("channel", self._described_channel, budget)

    def close(self, timeout: float | None = None) -> None:
        """Flush op markers, and release the producer.

        Args:
            timeout: Maximum seconds to wait; None: `close_timeout`.
        """
        self.visibility.close()
        with self._lock:
            producer, self._producer, self._closed = self._producer, None, True
        atexit.unregister(self.close)
        self._enquiries.close()
        self._admin = self._topics = None  # without references the client closes its connections
        if producer is not None:
            left = producer.flush(self._settings.close_timeout if timeout is None else timeout)
            if left:
                self.recorder.ops_dropped(self._settings.group, left)
                log.warning("%d op marker(s) not sent before close, the checker will decide", left)

    def _drop_if_fatal(self, producer: Producer, error: KafkaError) -> None:
        """Drop the producer after a fatal error; the next publication creates a new one."""
        if error.code() == KafkaError._FATAL:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            with self._lock:
                if self._producer is producer:
                    self._producer = None

    def _described_channel(self) -> ChannelDescription:
        timeout = max(_REQUEST_SECONDS, self._settings.publish_timeout)
        return verify_channel(self._admin_client(), self._settings.channel, timeout)

    def _start(self) -> None:
        """Connect, and describe the channel. It runs in the thread of the enquiries only."""
        if self._producer is not None and self._channel is not None:
            return
        channel = self._described_channel()
        producer = self._producer or self._new_producer(channel)
        with self._lock:
            if self._closed:
                return
            is_new = self._producer is not producer
            self._channel, self._topics, self._producer = channel, self._topics or self._no_topics(), producer
        if is_new:
            threading.Thread(target=self._poll, args=(producer,), name="outbox-sender", daemon=True).start()
            atexit.register(self.close)

    def _new_producer(self, channel: ChannelDescription) -> Producer:
        with checked_properties():
            return Producer(
                {
                    "linger.ms": 0,  # a transaction waits for its halves; under load batches form without lingering
                    **logged(reconnecting(self._settings.kafka)),
                    "message.max.bytes": self._max_half_bytes(channel),
                    "acks": "all",
                    "enable.idempotence": True,
                    "message.timeout.ms": int(self._settings.publish_timeout * 1000),
                }
            )

    def _admin_client(self) -> AdminClient:
        """Return the admin client, created at the first call in a process."""
        if self._admin is None:
            self._admin = admin_client(self._settings.kafka)
        return self._admin

    def _poll(self, producer: Producer) -> None:
        while self._producer is producer:
            try:
                producer.poll(_POLL_SECONDS)
            except Exception:  # of one delivery report; the thread must continue with the others
                log.exception("Delivery report failed")
