"""Send halves and op markers."""

import logging
import math
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox._failpoints import failpoint
from outbox._half.cluster_connection import CLOSE_SECONDS, POLL_SECONDS, Connection
from outbox._kafka.admin import NO_ANSWER
from outbox._kafka.produce import why_refused
from outbox._publish.waiting import Budget, Notify
from outbox._rules.half_place import HalfPlace
from outbox.errors import OutboxError, PublishFailed
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpSource, encode_ops
from outbox.protocol.partitioner import half_partition
from outbox.protocol.record import Record

Report = Callable[[KafkaError | None, Message], None]


class Acks:
    """The acknowledgements of the halves of one transaction."""

    def __init__(self, witness: Connection) -> None:
        self.error: str | None = None
        self._witness = witness
        self._too_late = False
        self._sent_at = 0.0  # s, monotonic
        self._answered_at = -math.inf  # likewise
        self._offsets: list[int] = []
        self._left = 0
        self._when_all: Notify | None = None
        self._lock = threading.Lock()

    def expect(self) -> Report:
        """Expect one more acknowledgement; return the callback for its delivery report."""
        with self._lock:
            self._sent_at = time.monotonic()
            self._left += 1
            self._offsets.append(-1)
            return partial(self._report, len(self._offsets) - 1)

    def cancel_last(self) -> None:
        """Stop expecting the last half, which could not be produced: no report will come."""
        with self._lock:
            self._left -= 1
            self._offsets.pop()

    def _report(self, index: int, error: KafkaError | None, message: Message) -> None:
        """Handle a delivery report. An acknowledgement without an offset is an error (R3)."""
        offset = message.offset()
        with self._lock:
            if index >= len(self._offsets):
                return  # cancelled: a signal handler raised after produce() had queued the half (R47)
            if error is not None:
                self.error = why_refused(error, message.topic() or "")
                self._too_late = self._too_late or error.code() in NO_ANSWER
            elif offset is None or offset < 0:
                self.error = "a half was acknowledged without an offset"
            else:
                self._offsets[index] = offset
                self._answered_at = time.monotonic()
                self._witness.answered()
            self._left -= 1
            notify = None
            if self._left == 0:
                notify, self._when_all = self._when_all, None
        if notify is not None:
            notify()

    def when_all(self, notify: Notify) -> None:
        """Call a function when all acknowledgements are there: now, or from the thread that polls the producer."""
        with self._lock:
            missing = self._left
            self._when_all = notify if missing else None
        if not missing:
            notify()

    def arrive(self, budget: Budget, seconds: float) -> bool:
        """Wait for at most `seconds` of the budget; return whether all acknowledgements are there."""
        return budget.until(self.when_all, seconds)

    def offsets(self, budget: Budget) -> list[int]:
        """Wait for all acknowledgements; return the offsets of the halves in the order of `expect()`."""
        if self._left and not budget.until(self.when_all):
            if self._answered_at < self._sent_at:  # else Kafka is at work on many halves
                self._witness.unanswered(self._sent_at, "a half message was not acknowledged")
            raise PublishFailed(
                f"Kafka did not acknowledge {len(self._offsets)} half message(s) in time. "
                "Roll the local transaction back. Check that Kafka is up, and try again."
            )
        if self.error is not None:
            if self._too_late:
                self._witness.unanswered(self._sent_at, self.error)
            raise PublishFailed(
                f"Kafka refused a half message ({self.error}). Roll the local transaction back. "
                "Correct the cause, or try again."
            )
        return self._offsets

    def acknowledged(self) -> list[int]:
        """Return the offsets so far, -1 for each half that is not acknowledged."""
        return self._offsets


log = logging.getLogger("outbox")

_FULL_QUEUE_SECONDS = 0.005

_BUSY = 10
_COLLECT_SECONDS = 0.02
"""Where so many transactions ended within this time, op markers wait for each other for as long."""


class Sender(Connection):
    """Sends halves and op markers over the connection."""

    def _begin(self) -> None:
        super()._begin()
        self._ended = deque([-math.inf] * _BUSY, _BUSY)  # when the last transactions ended, s, monotonic
        self._collected: deque[tuple[float, OpEntry]] = deque()  # with such a time

    @property
    def channel_names(self) -> Channel:
        """The names of the channel's topics; known without Kafka."""
        return self._settings.channel

    def half_place(self, ordering_key: bytes | None, transaction_id: str) -> HalfPlace:
        """Return the half topic, partition and floor offset of a transaction; call it before the first half is sent."""
        channel, id_ = self.channel, uuid.UUID(transaction_id).bytes
        partition = half_partition(self._settings.service, ordering_key, id_, channel.partitions)
        ends = self._topics.ends.get(channel.half.name, ()) if self._topics is not None else ()
        floor = max(self._floors.get((channel.half.id, partition), 0), *ends[partition : partition + 1], 0)
        return HalfPlace(channel.half.id, partition, floor)

    def require_same_topic(self, place: HalfPlace, offsets: Sequence[int]) -> None:
        """Refuse to commit a transaction whose half topic was recreated after its halves were sent (R39).

        The channel is described again before the next transaction.
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

    def acks(self) -> Acks:
        return Acks(self)

    def produce_half(self, half: Record, acks: Acks, budget: Budget) -> None:
        """Produce a half, without waiting for its acknowledgement."""
        began = time.monotonic()
        report = acks.expect()
        produced = False
        try:
            while not (produced := self._produced(half, report, budget)) and not budget.is_spent:
                budget.pause(_FULL_QUEUE_SECONDS)  # the polling thread empties the queue
        finally:
            if not produced:
                acks.cancel_last()
        if not produced:
            self.unanswered(began, "the client's queue of halves is full")
            raise PublishFailed(
                "The client's queue of halves is full. Roll the local transaction back. "
                "Try again, or raise queue.buffering.max.messages."
            )

    def _produced(self, half: Record, report: Report, budget: Budget) -> bool:
        """Return whether the client's queue accepted a half."""
        self.connect(budget)
        producer = self._live_producer()
        at = half.timestamp
        try:
            producer.produce(half.topic, half.value, half.key, half.partition, report, None, at, half.headers)
        except BufferError:
            return False
        except KafkaException as error:
            self._drop_if_fatal(producer, error.args[0])
            raise PublishFailed(
                f"A half message cannot be sent: {error.args[0].str()}. Roll the local transaction back and try again."
            ) from error
        return True

    def send_halves(self, halves: Sequence[Record], budget: Budget | None = None) -> list[int]:
        """Produce halves in the order of their positions, wait for all acknowledgements, and return the offsets."""
        budget = budget or self.budget()
        acks = self.acks()
        for half in halves:
            self.produce_half(half, acks, budget)
        return acks.offsets(budget)

    def send_op(self, entry: OpEntry, source: OpSource = OpSource.PRODUCER) -> None:
        """Send an op marker without waiting for its acknowledgement: if it is lost, the checker decides."""
        with suppress(OutboxError):  # without a connection it is dropped
            self.connect(self.budget())
        self._send_ops(entry.partition, [entry], source)

    def send_op_soon(self, entry: OpEntry) -> None:
        """Send the op marker of a transaction over the connection that there is; while many end, with theirs."""
        now = time.monotonic()
        self._ended.append(now)
        if self._is_busy(now) and self._producer is not None:
            self._collected.append((now, entry))
        else:
            self._send_ops(entry.partition, [entry], OpSource.PRODUCER)

    def _is_busy(self, now: float) -> bool:
        return now - self._ended[0] < _COLLECT_SECONDS

    def _serve(self, producer: Producer) -> None:
        producer.poll(_COLLECT_SECONDS if self._is_busy(time.monotonic()) else POLL_SECONDS)
        collected = self._collected
        if collected and time.monotonic() - collected[0][0] >= _COLLECT_SECONDS:
            self._send_collected()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """See `Connection.close`."""
        self._send_collected()
        super().close(timeout)

    def _send_collected(self) -> None:
        placed: defaultdict[int, list[OpEntry]] = defaultdict(list)
        with suppress(IndexError):  # a thread that closes may take the rest
            while self._collected:
                _, entry = self._collected.popleft()
                placed[entry.partition].append(entry)
        for partition, entries in placed.items():
            self._send_ops(partition, entries, OpSource.PRODUCER)

    def _send_ops(self, partition: int, entries: Sequence[OpEntry], source: OpSource) -> None:
        topic, report = self._settings.channel.op_topic, partial(self._report_ops, entries)
        for value, headers in encode_ops(entries, source):
            failpoint("outbox.op")
            try:
                self._live_producer().produce(topic, value, None, partition, report, None, 0, headers)
            except (BufferError, KafkaException, OutboxError) as error:
                self._ops_dropped(entries, str(error))

    def _report_ops(self, entries: Sequence[OpEntry], error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._ops_dropped(entries, why_refused(error, self._settings.channel.op_topic))

    def _ops_dropped(self, entries: Sequence[OpEntry], reason: str) -> None:
        self.recorder.ops_dropped(self._settings.service, len(entries))
        ids = ", ".join(entry.transaction_id for entry in entries)
        log.warning("Op marker of transaction %s not sent, the checker will decide: %s", ids, reason)
