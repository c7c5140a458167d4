"""One half partition at work: a thread that feeds its ledger and writes its Kafka transactions.

The consumer belongs to the service's thread, which puts messages into this one's inbox. Whatever goes wrong here ends
the thread; the service then takes the partition over anew, from the committed checkpoint (R17, R18).
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import structlog
from confluent_kafka import Message, TopicPartition

from outbox._failpoints import failpoint
from outbox._kafka.admin import TopicDescription
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.topic_cache import TopicCache
from outbox._rules.broker_clock import BrokerClock
from outbox.errors import KafkaUnreachable
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.record import Record
from relay import metrics
from relay import telemetry as report
from relay.batching.batch import Batch, Outcome, settle_batch, take_batch
from relay.batching.pacing import BatchPolicy, Pacing
from relay.batching.preflight import RealTopic, real_topic, targets
from relay.batching.topic_gate import Gate
from relay.kafka.check_sender import CheckSender
from relay.kafka.decode import Decoder
from relay.kafka.discard_reader import DiscardReader
from relay.kafka.half_reader import HalfReader
from relay.kafka.producer import DeliveryError
from relay.kafka.transactional_delivery import Delivery
from relay.lessons import Lessons
from relay.recovery.hanging_transactions import Leftovers
from relay.state.half_records import OpRecord
from relay.state.ledger import Ledger
from relay.state.message_transaction import Transaction

READ_AT_ONCE = 5_000
PROGRESS_SECONDS = 1.0
"""Progress without a delivery (rollbacks) is committed after so long."""
HEARTBEAT_SECONDS = 3_600.0
"""An idle partition commits its checkpoint again, so that offsets and ids never expire (R22)."""
TICK_SECONDS = 0.05
HALVES_AWAITED_SECONDS = 1.0
"""So long ops for halves ahead wait for more halves; then they are passed, and check-back answers."""
LEADERS_AWAITED_SECONDS = 2.0
"""So long the partitions of a topic that was made a moment ago may be without leaders, before DELIVER is in vain."""
RECALL_AT_ONCE = 2_000
"""Deferred halves that are read again in one turn: others must not wait for them."""
TELL_SECONDS = 1.0
"""What waits is counted so often: it costs more, the more waits."""
ASK_AT_ONCE = 500
"""Check requests of one turn: after an outage very many are due, and each listener's needs its message."""
ASK_WHILE_BEHIND = 50
"""Check requests of one turn while halves wait to be read: those may be decided already."""

log = structlog.get_logger()


class PartitionWorker(threading.Thread):
    """The owner of one half partition.

    Args:
        partition: Its number.
        channel: The channel.
        ledger: Made from the committed checkpoint.
        delivery: Its transactional producer, already initialised.
        half_reader: Reads single halves of it.
        decoder: Reads its records; shared with `half_reader`.
        discards: Reads its discard partition.
        leftovers: What former transactions of its producer may have left open.
        topics: Real topics, for pre-flight.
        gate: Made for this partition.
        group_metadata: Gives the newest metadata of the subscribed consumer.
        checks: Sends check requests.
        policy: What closes a batch, while nothing fails.
        lessons: What failed batches of former workers taught.
        began: When the take-over began (monotonic, seconds).
    """

    def __init__(
        self,
        partition: int,
        channel: ChannelDescription,
        ledger: Ledger,
        delivery: Delivery,
        half_reader: HalfReader,
        decoder: Decoder,
        discards: DiscardReader,
        leftovers: Leftovers,
        topics: TopicCache,
        gate: Gate,
        group_metadata: Callable[[], bytes],
        checks: CheckSender,
        policy: BatchPolicy,
        lessons: Lessons,
        began: float,
    ) -> None:
        super().__init__(name=f"partition-{partition}", daemon=True)
        self.partition = partition
        self.failure: BaseException | None = None
        self._channel = channel
        self._ledger = ledger
        self._delivery = delivery
        self._half_reader = half_reader
        self._decoder = decoder
        self._discards = discards
        self._leftovers = leftovers
        self.ready = False  # whether all that the checkpoints say is restored
        self._topics = topics
        self._gate = gate
        self._group_metadata = group_metadata
        self._checks = checks
        self._lessons = lessons
        self._pacing = Pacing(policy)
        self._began = began
        self._clock = BrokerClock()
        self._half_read_at = time.monotonic()
        self._counted: Counter[str] = Counter()
        self._told_at = -math.inf
        self._deferring: Sequence[str] = ()  # producer groups
        self._committed = (ledger.half_checkpoint(), ledger.op_checkpoint())
        self._committed_at = time.monotonic()
        self._halves: deque[Message] = deque()
        self._ops: deque[Message | int] = deque()  # a number: the end of the partition, seen at that broker time
        self._wake = threading.Condition()
        self._stopping = False
        self._op_end_wanted = False
        self._writing = False

    # --- called by the service's thread -------------------------------------------------------------------------

    def feed(self, halves: Sequence[Message], ops: Sequence[Message]) -> None:
        """Put messages into the inbox, in the order of their offsets."""
        with self._wake:
            self._halves.extend(halves)
            self._ops.extend(ops)
            self._wake.notify()

    def wants_op_end(self) -> int | None:
        """Return the broker's time now (ms), if somebody is due as soon as the end of the op partition is seen."""
        return self._clock.now(_ms()) if self._op_end_wanted and not self._ops else None

    def saw_op_end(self, broker_time: int) -> None:
        """Everything in the op partition at this broker time (ms) is in the inbox."""
        with self._wake:
            self._ops.append(broker_time)
            self._op_end_wanted = False
            self._wake.notify()

    def inbox(self) -> tuple[int, int]:
        """How many records of the half partition, and of the op partition, wait here."""
        return len(self._halves), len(self._ops)

    def skips(self, topic: str, offset: int) -> bool:
        """Return whether an operator wants this record passed by, as far as the discard topic was read."""
        return self.ready and (topic, offset) in self._decoder.skipped

    def settled(self) -> int:
        """Return what the committed checkpoints say, as one number that grows with each record that is settled."""
        half, op = self._committed
        return 2 * half.head - sum(map(len, half.unsettled)) + op.head + op.offset

    def has_work(self) -> bool:
        """Return whether there is something to read from the inbox, or to write."""
        return self._writing or any(self.inbox()) or self._ledger.ready().messages > 0

    def head(self) -> int:
        """Offset of the half that is read next; more may be in the inbox."""
        return self._ledger.head()

    def stop(self, timeout: float) -> None:
        """Let the open Kafka transaction finish, then end; the producer is let go."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._half_reader.stop()
        self._discards.stop()
        self._leftovers.stop()
        self.join(timeout)
        self._delivery.close()
        self._half_reader.close()
        self._discards.close()

    # --- the thread ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Read, decide, deliver, until asked to stop or something fails."""
        try:
            self._restore_discards()
            self._restore_halves()
            self.ready = True
            failpoint("relay.restored")
            metrics.RESTORE_SECONDS.observe(time.monotonic() - self._began)
            while not self._stopping:
                self._wait()
                self._read()
                self._settle()
                self._ask_overdue()
        except BaseException as error:  # noqa: BLE001 - the service reads it, and takes the partition over anew
            self.failure = error

    def _restore_discards(self) -> None:
        """Know what lies in the discard topic before anything is delivered."""
        self._ledger.restore_discards(self._discards.read_manifests())
        self._decoder.skipped = self._discards.skipped()
        self._clock.saw(self._discards.newest_append, _ms())

    def _restore_halves(self) -> None:
        """Know the keys of all unsettled halves before anything is delivered, and when they are due."""
        began, count = time.monotonic(), 0
        for halves in self._half_reader.read(chain.from_iterable(self._ledger.half_checkpoint().unsettled)):
            if self._stopping:
                return
            self._ledger.read_halves(halves)
            self._clock.saw(halves[-1].append_time, _ms())
            self._ledger.let_bodies_go(self._clock.now(_ms()))
            count += len(halves)
        self._ledger.restored()
        seconds = round(time.monotonic() - began, 3)
        log.info("a partition is restored", partition=self.partition, unsettled=count, seconds=seconds)

    def _wait(self) -> None:
        left = self._pacing.wait(_ms())
        with self._wake:
            if not self._halves and not self._ops and not self._stopping:
                self._wake.wait(TICK_SECONDS if left is None else left / 1000)

    def _read(self) -> None:
        self._read_halves()
        self._recall()
        self._read_ops()

    def _read_halves(self) -> None:
        """Take halves in steps: how many may be read depends on those before."""
        left = READ_AT_ONCE
        while left > 0 and (messages := self._take_halves(left)):
            halves = [self._decoder.half(message) for message in messages]
            left -= len(halves)
            self._half_read_at = time.monotonic()
            self._clock.saw(max([half.append_time for half in halves]), _ms())
            self._ledger.read_halves(halves)

    def _recall(self) -> None:
        """Read deferred halves again that may be kept by now."""
        for halves in self._half_reader.read(self._ledger.deferred_wanted(RECALL_AT_ONCE)):
            self._ledger.read_deferred(halves)

    def _take_halves(self, most: int) -> list[Message]:
        if not self._halves:
            return []
        limit = self._ledger.read_limit(self._halves[0].offset() or 0)
        taken: list[Message] = []
        while self._halves and len(taken) < most and (self._halves[0].offset() or 0) < limit:
            taken.append(self._halves.popleft())
        return taken

    def _read_ops(self) -> None:
        """Take ops; while too many wait for halves that can still be read, leave them in the inbox."""
        if self._ledger.early_ops_full() and self._can_read_halves():
            return
        records: list[OpRecord] = []
        for _ in range(min(len(self._ops), READ_AT_ONCE)):
            item = self._ops.popleft()
            if isinstance(item, int):
                self._ledger.read_ops(records)
                self._ledger.ops_read_until(item)
                records = []
            else:
                records.append(self._decoder.op(item))
        self._ledger.read_ops(records)

    def _can_read_halves(self) -> bool:
        if not self._halves:
            return time.monotonic() - self._half_read_at < HALVES_AWAITED_SECONDS
        return self._can_read_halves_of_inbox()

    def _can_read_halves_of_inbox(self) -> bool:
        offset = (self._halves[0].offset() or 0) if self._halves else 0
        return bool(self._halves) and offset < self._ledger.read_limit(offset)

    def _settle(self) -> None:
        now = self._clock.now(_ms())
        self._ledger.let_bodies_go(now)
        self._look_at_closed_topics()
        if self._pacing.leaves(self._ledger.ready(), _ms()):
            self._leave(now)
        self._count()

    def _leave(self, now: int) -> None:
        if stale := self._leftovers.take_stale():
            self._learn(stale, self._topics.look_up(stale))
        batch = take_batch(self._ledger, self._take_ready(), now, self._lessons.volume.limit.messages)
        if batch:
            self._writing = True
            self._write(batch, now)
            self._writing = False
        elif self._commit_is_due():
            self._commit([])

    def _look_at_closed_topics(self) -> None:
        """Whoever waits for one that is open by now may be taken; so may who must not wait any longer."""
        gate = self._gate
        self._look_again(gate.turn(_ms()))
        if self._ledger.lacks_room():
            self._ledger.put_back(gate.relieve(self._ledger.crowds))

    def _take_ready(self) -> list[Transaction]:
        """Take what may go to its real topics; a topic that is new here is looked up first."""
        gate, limit = self._gate, self._lessons.volume.limit
        ready = self._ledger.take_ready(limit.messages, limit.bytes, gate.admits)
        while unknown := gate.unknown():
            self._learn(unknown, self._topics.look_up(unknown), _offsets(ready))
            messages = limit.messages - sum(len(transaction.halves) for transaction in ready)
            size = limit.bytes - sum(transaction.size for transaction in ready)
            ready += self._ledger.take_ready(messages, size, gate.admits)
        report.at_gate(gate.take_news(), self.partition)
        return ready

    def _look_again(self, names: Collection[str]) -> None:
        if not names:
            return
        try:
            found = self._topics.look_again(names)
        except KafkaUnreachable as error:
            log.warning("real topics cannot be looked at", partition=self.partition, error=str(error))
            self._gate.postpone(names)
        else:
            self._learn(names, found)

    def _learn(
        self, names: Collection[str], found: Mapping[str, TopicDescription], in_hand: Collection[int] = frozenset()
    ) -> None:
        self._ledger.put_back(self._gate.learn(names, self._real_topics(found, in_hand)))

    def _real_topics(self, found: Mapping[str, TopicDescription], in_hand: Collection[int]) -> dict[str, RealTopic]:
        """Return what pre-flight must know of some topics, after what is left open there was ended."""
        partitions = {name: topic.partitions for name, topic in found.items() if not topic.lacks}
        closed = self._leftovers.end(partitions, in_hand)
        refusals, now = self._lessons.refusals, _ms()
        return {
            name: real_topic(topic, closed.get(name) or refusals.why_closed(name, now)) for name, topic in found.items()
        }

    def _look_for(self, late: Sequence[Transaction], in_hand: Sequence[Transaction]) -> None:
        """Look at the topics of what lies in the discard topic: somebody may have just made one, and said DELIVER."""
        names = {name for transaction in late for name in targets(transaction)}
        deadline = time.monotonic() + LEADERS_AWAITED_SECONDS
        found = self._real_topics(self._topics.look_again(names), _offsets(in_hand))
        while any(topic.unavailable for topic in found.values()) and time.monotonic() < deadline and not self._stopping:
            time.sleep(TICK_SECONDS)
            found = self._real_topics(self._topics.look_again(names), _offsets(in_hand))
        self._ledger.put_back(self._gate.refresh(names, found))

    def _write(self, batch: Batch, now: int) -> None:
        late, dropped = batch.late(), batch.halves_wanted()
        if dropped:
            batch.put_in_halves(self._half_reader.fetch(dropped))
        if late:
            batch.put_in(self._discards.fetch(batch.bodies_wanted()))
            self._look_for(late, batch.ready)
            failpoint("relay.late_fetched")
        outcome = self._outcome(batch, now)
        if batch.moves:
            failpoint("relay.state.parking")
        self._deliver(batch, outcome.records)
        if late:
            failpoint("relay.late_committed")
        report.written(batch, outcome, self.partition)

    def _deliver(self, batch: Batch, records: Sequence[Record]) -> None:
        began = time.monotonic()
        try:
            self._commit(records)
        except DeliveryError as error:
            seconds = time.monotonic() - began
            closed = self._lessons.failed(batch, records, error, seconds, _ms())
            report.failed(error, closed, self._lessons.volume.limit, self.partition)
            raise
        self._lessons.delivered(batch, records, time.monotonic() - began, timed_out=self._delivery.timed_out)

    def _outcome(self, batch: Batch, now: int) -> Outcome:
        topics = self._gate.topics
        outcome = settle_batch(batch, self._ledger, topics, self._channel.channel, now, self._gate.allowed)
        limits = [
            topic.max_message_bytes for name in outcome.topics() if (topic := topics.get(name)) and not topic.lacks
        ]
        if limits:
            self._delivery.limit_batches(min(limits))
        return outcome

    def _commit_is_due(self) -> bool:
        idle = time.monotonic() - self._committed_at
        if idle < PROGRESS_SECONDS:
            return False
        now = (self._ledger.half_checkpoint(), self._ledger.op_checkpoint())
        return now != self._committed or idle >= HEARTBEAT_SECONDS

    def _commit(self, records: Sequence[Record]) -> None:
        half, op = self._ledger.half_checkpoint(), self._ledger.op_checkpoint()
        topics = self._channel
        offsets = [
            TopicPartition(topics.half.name, self.partition, half.offset, half.encode(topics.half.id, self.partition)),
            TopicPartition(topics.op.name, self.partition, op.offset, op.encode(topics.op.id, self.partition)),
        ]
        with metrics.COMMIT_SECONDS.time():
            self._delivery.commit(records, offsets, self._group_metadata())
        self._pacing.written(_ms(), self._delivery.rest_ms)
        self._committed, self._committed_at = (half, op), time.monotonic()
        if records:
            metrics.BATCH_MESSAGES.observe(len(records))

    def _ask_overdue(self) -> None:
        now = self._clock.now(_ms())
        most = ASK_WHILE_BEHIND if self._halves else ASK_AT_ONCE
        requests = self._ledger.take_due(now, min(most, self._checks.room()))
        ready = [request for request in requests if not _lacks_message(request)]
        ready += self._with_messages([request for request in requests if _lacks_message(request)])
        if ready:
            self._checks.ask(ready)
            metrics.CHECKS.inc(len(ready))
        self._op_end_wanted = self._ledger.needs_op_end(now)

    def _with_messages(self, requests: Sequence[CheckRequest]) -> list[CheckRequest]:
        """Return requests to listeners, with the messages that are not in memory."""
        found = [(request, self._ledger.first_half(request.transaction_id)) for request in requests]
        places = [(request, *place) for request, place in found if place]
        parked = {key: offset for _, key, offset in places if key is not None}
        halves = self._discards.fetch(parked) if parked else {}
        halves |= self._half_reader.fetch(offset for _, key, offset in places if key is None)
        return [replace(request, message=halves[offset].envelope()) for request, _, offset in places]

    def _count(self) -> None:
        report.counted(self._ledger.counts - self._counted, self.partition)
        report.contradicted(self._ledger.take_contradictions(), self.partition)
        self._counted = self._ledger.counts.copy()
        if time.monotonic() - self._told_at > TELL_SECONDS:
            deferring = self._ledger.deferred_groups()
            report.deferring(self._deferring, deferring, self.partition)
            self._deferring = deferring
            report.waiting(self._ledger, self._gate.waiting(), self._clock.now(_ms()))
            self._told_at = time.monotonic()


def _offsets(transactions: Iterable[Transaction]) -> set[int]:
    """Of all their halves."""
    return {half.offset for transaction in transactions for half in transaction.all_halves()}


def _lacks_message(request: CheckRequest) -> bool:
    """Whether a listener is asked, and its message is not in memory."""
    return request.truth is Truth.LISTENER and request.message is None


def _ms() -> int:
    return time.monotonic_ns() // 1_000_000
