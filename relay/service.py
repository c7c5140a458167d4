"""The relay's main loop: one subscribed consumer, one worker for each half partition that this process owns."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._failpoints import failpoint
from outbox._kafka.admin import admin_client, checked_properties
from outbox._kafka.topic_cache import TopicCache
from outbox._service.contract_monitor import ContractWatch
from outbox._service.exit_codes import UnsafeError
from outbox._service.health import Health
from outbox._service.membership import generation, not_joined
from outbox._service.rights import require_rights
from outbox.errors import KafkaUnreachable, OutboxError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel
from relay import metrics
from relay.batching.topic_gate import Gate
from relay.intake import Intake
from relay.kafka.at_least_once_delivery import PlainDelivery
from relay.kafka.check_sender import CheckSender
from relay.kafka.decode import Decoder
from relay.kafka.discard_reader import DiscardReader
from relay.kafka.half_reader import HalfReader
from relay.kafka.log_ends import LogEnds
from relay.kafka.offset_commits import OffsetCommits
from relay.kafka.producer import DeliveryError
from relay.kafka.transactional_delivery import TRANSACTION_TIMEOUT_MS, Delivery, TransactionalDelivery, request_seconds
from relay.lessons import Lessons
from relay.partition import PartitionWorker
from relay.partitions.halts import Halts
from relay.partitions.ownership import Ownership
from relay.partitions.stalls import Stalls
from relay.recovery.hanging_checkpoint import end_hanging, refuse_undone_end
from relay.recovery.hanging_transactions import Leftovers, NoLeftovers, TransactionalLeftovers
from relay.recovery.restore import HeldBackError, read_checkpoints, restore_ledger, verify_discards, why_unreadable
from relay.recovery.stable_offsets import watch_real_topics
from relay.settings import RelaySettings
from relay.state.ledger import Ledger

POLL_SECONDS = 0.1
CONSUME_AT_ONCE = 10_000
OP_END_SECONDS = 0.2
STOP_SECONDS = TRANSACTION_TIMEOUT_MS / 1000 + 5
DRAIN_SECONDS = 4.0
"""So long the open Kafka transaction may take when the process is asked to stop; then its next owner does it anew."""

UNREADABLE_SECONDS = 5.0
"""Time to deliver what lies before a record that cannot be read, before its half partition halts."""

log = structlog.get_logger()


class RelayService:
    """A relay process.

    Args:
        settings: Its settings.
        stop: Set when the process is asked to stop.
        health: Its health, for probes.

    Raises:
        ChannelError: The channel's topics are missing or wrong.
        ConfigurationError: The cluster does not answer.
    """

    def __init__(self, settings: RelaySettings, stop: threading.Event, health: Health) -> None:
        self._settings = settings
        self._stop = stop
        self._health = health
        admin = admin_client(settings.connection())
        self._contract = ContractWatch(
            admin, settings.channel_names(), settings.contract(), metrics.CONTRACT, settings.contract_interval / 1000
        )
        self._channel = self._contract.description
        require_rights(admin, _needed_rights(self._channel.channel))
        self._admin = admin
        self._topics = TopicCache(admin, writing=True)
        self._allowed = settings.allow_list()
        self._real_topics = watch_real_topics(admin, self._topics)
        topics = (self._channel.half.name, self._channel.op.name)
        self._ends = LogEnds(admin, dict.fromkeys(topics, self._channel.partitions))
        self._checks = CheckSender(settings.polled_connection(), self._channel.channel)
        self._workers: dict[int, PartitionWorker] = {}
        self._lessons: dict[int, Lessons] = {}
        self._ownership = Ownership()
        self._halts = Halts()
        self._stalls = Stalls()
        self._op_end_asked = 0.0
        self._group_metadata = b""
        self._commits = OffsetCommits()
        with checked_properties():
            self._consumer = Consumer(self._consumer_config())
        self._intake = Intake(self._consumer, self._channel, self._contract.soon)

    def _consumer_config(self) -> dict[str, object]:
        return {
            "auto.offset.reset": "error",  # a checkpoint out of range stops the relay (R22)
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 2_000,  # more costs memory, and no time is won: a pause throws away what is queued
            **self._settings.membership(),
            **self._settings.polled_connection(),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "group.id": self._channel.channel.relay_group,
            "isolation.level": "read_committed",  # makes committed() wait for stable offsets (R18)
            "on_commit": self._commits.heard,
        }

    def run(self) -> None:
        """Serve until asked to stop.

        Raises:
            UnsafeError: Topics or checkpoints are not what they were: going on would be a guess.
        """
        self._subscribe()
        self._real_topics.start()
        self._ends.watch.start()
        log.info("relay started", channel=self._channel.channel.name, partitions=self._channel.partitions)
        if self._settings.allowed_topics is None:
            log.info("every producer group may write to every topic that is not internal: allowed_topics is not set")
        try:
            while not self._stop.is_set():
                self._turn()
        except UnsafeError as error:
            raise self._contract.cause_of(error) from error
        finally:
            self._contract.stop()
            self._real_topics.stop()
            self._ends.watch.stop()
            self._give_up(list(self._workers), DRAIN_SECONDS)
            self._consumer.close()
            log.info("relay stopped")

    def _subscribe(self) -> None:
        names = [self._channel.half.name, self._channel.op.name]
        self._consumer.subscribe(names, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _turn(self) -> None:
        first = self._consumer.poll(POLL_SECONDS)
        messages = [first, *self._consumer.consume(CONSUME_AT_ONCE, 0)] if first is not None else []
        if messages:
            failpoint("relay.polled")
        self._group_metadata = self._consumer.consumer_group_metadata()
        self._intake.hand_over(messages, self._workers)
        self._commits.send(self._consumer)
        self._watch_workers()
        self._rejoin_if_fenced()
        self._look_at_what_is_outside()
        self._look_at_what_is_unreadable()
        self._take_over(self._ownership.due(time.monotonic(), generation(self._group_metadata)))
        self._end_if_all_are_halted()
        self._intake.throttle(self._workers)
        self._look_for_op_ends()
        self._checks.poll()
        self._tell()
        self._look_for_stalls()
        self._contract.check()
        self._real_topics.check()
        self._ends.watch.check()
        self._health.not_ready = self._not_ready()
        self._health.turned()

    def _tell(self) -> None:
        """How far the workers are behind what was fetched last."""
        metrics.SERVED.set(len(self._workers))
        metrics.NOT_SERVED.set(len(self._ownership.waiting()))
        metrics.HALTED.set(len(self._halts))
        for number, worker in self._workers.items():
            place = TopicPartition(self._channel.half.name, number)
            _, end = self._consumer.get_watermark_offsets(place, cached=True)
            metrics.LAG.labels(number).set(max(end - worker.head(), 0))

    def _look_for_stalls(self) -> None:
        """Compare the checkpoints of the partitions that are served with what there is to do."""
        now = time.monotonic()
        for number, worker in self._workers.items():
            if worker.ready:
                has_work = worker.has_work() or self._intake.is_behind(number, self._ends.of)
                self._stalls.observe(number, worker.settled(), now, has_work=has_work)
        for number, seconds in self._stalls.seconds(now).items():
            metrics.STALLED_SECONDS.labels(number).set(seconds)

    def _forget_stalls(self, numbers: Collection[int]) -> None:
        self._stalls.forget(numbers)
        for number in numbers:
            metrics.forget(number)

    def _not_ready(self) -> str | None:
        if why := self._halts.why() or self._stalls.why(time.monotonic()):
            return why
        restoring = (number for number, worker in self._workers.items() if not worker.ready)
        waiting = sorted({*self._ownership.waiting(), *restoring})
        if waiting:
            return f"partitions {waiting} are not served yet"
        return not_joined(self._group_metadata, self._channel.channel.relay_group) or self._contract.not_ready()

    # --- who owns what ------------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Serve the partition numbers of which both half and op partition are ours; pause the others."""
        self._group_metadata = consumer.consumer_group_metadata()
        self._refuse_new(partitions)
        whole = self._ownership.assigned((tp.topic, tp.partition) for tp in partitions)
        starts = self._take_over(whole, assign=True)
        assign = consumer.incremental_assign if self._settings.in_steps() else consumer.assign
        assign(
            [
                TopicPartition(tp.topic, tp.partition, starts.pop((tp.topic, tp.partition), OFFSET_END))
                for tp in partitions
            ]
        )
        idle = [tp for tp in partitions if tp.partition not in self._workers]
        self._intake.assigned(partitions, idle)
        self._go_on_with_earlier_halves(starts)
        log.info("partitions assigned", serving=sorted(self._workers), paused=sorted({tp.partition for tp in idle}))

    def _refuse_new(self, partitions: Sequence[TopicPartition]) -> None:
        """Refuse a channel that grew while it is served: ordering keys have moved (R29)."""
        new = sorted({tp.partition for tp in partitions if tp.partition >= self._channel.partitions})
        if new:
            raise UnsafeError(
                f"partitions {new} are new, the channel had {self._channel.partitions}: ordering keys move to other "
                "partitions; see docs/operations.md before this channel is served again"
            )
        self._contract.soon()

    def _go_on_with_earlier_halves(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Partitions that came in an earlier step of the assignment were paused until their counterparts came."""
        for (topic, number), offset in starts.items():
            try:
                self._intake.read_from([TopicPartition(topic, number, offset)])
            except KafkaException as error:
                self._give_up([number])
                self._try_later(number, f"reading from its checkpoint failed: {error.args[0].str()}")

    def _revoked(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        failpoint("relay.revoking")
        numbers = self._ownership.revoked((tp.topic, tp.partition) for tp in partitions)
        self._halts.end(numbers)
        self._forget_stalls(numbers)
        self._give_up(numbers)
        for number in numbers:
            self._lessons.pop(number, None)
            self._intake.pause(number)  # one of the two may stay ours until the next step of the assignment
        log.info("partitions revoked", partitions=sorted(numbers))

    def _give_up(self, numbers: Iterable[int], seconds: float = STOP_SECONDS) -> None:
        workers = [self._workers.pop(number) for number in list(numbers) if number in self._workers]
        with ThreadPoolExecutor(max(len(workers), 1)) as pool:
            list(pool.map(lambda worker: worker.stop(seconds), workers))
        if late := [worker.partition for worker in workers if worker.is_alive()]:
            log.warning("Open batch did not end in time; the next owner repeats it", partitions=late)
        self._commits.finish(self._consumer, [worker.partition for worker in workers])
        for worker in workers:
            metrics.forget(worker.partition)

    def _watch_workers(self) -> None:
        """Replace workers that failed; give up those that were fenced until the next generation."""
        for number, worker in list(self._workers.items()):
            uncommitted = self._commits.failure(number)
            if worker.is_alive() and uncommitted is None:
                continue
            del self._workers[number]
            worker.stop(STOP_SECONDS)
            failure = uncommitted or worker.failure
            worker.failure = None  # its traceback would keep all that pends in memory
            self._commits.finish(self._consumer, [number])
            metrics.forget(number)
            metrics.FAILURES.labels(_cause(failure)).inc()
            self._topics.forget()
            self._contract.soon()
            if isinstance(failure, ProtocolError):  # a newer format, or a checkpoint that cannot be written
                self._intake.pause(number)
                self._halt(number, failure)
                continue
            if not isinstance(failure, (DeliveryError, OutboxError)):
                raise RuntimeError(f"partition {number} failed: {failure!r}") from failure  # noqa: TRY004 - not about a type
            log.warning("Partition worker restarted", partition=number, reason=str(failure))
            self._intake.pause(number)
            if isinstance(failure, DeliveryError) and failure.fenced:
                self._give_way(number)
            else:
                self._ownership.try_later(number, time.monotonic())

    def _halt(self, number: int, cause: Exception) -> None:
        """Serve a partition no more, until what halts it is settled: nothing may be skipped (R36)."""
        log.error("a half partition is halted", topic=self._channel.half.name, partition=number, reason=str(cause))
        self._halts.halt(number, cause)
        self._forget_stalls([number])
        self._ownership.halted(number, time.monotonic())
        self._contract.soon()

    def _end_if_all_are_halted(self) -> None:
        """End the process if it has nothing else to do.

        Raises:
            UnsafeError: All partitions are halted, the first one because of its checkpoint.
            ProtocolError: All partitions are halted, the first one because of a record.
        """
        cause = self._halts.of_all(self._channel.partitions)
        if cause is not None:
            raise cause

    def _look_at_what_is_outside(self) -> None:
        """Take partitions over anew whose next offset is gone: their checkpoints show what is lost."""
        for topic, number in self._intake.take_outside():
            if number in self._workers:
                self._give_up([number])
                self._intake.pause(number)
                self._try_later(number, f"the next offset of {topic}/{number} is gone from the topic")

    def _look_at_what_is_unreadable(self) -> None:
        """Pass by what an operator wants skipped; halt where nobody does, after what lies before it was delivered."""
        for place, found in self._intake.unreadable().items():
            topic, number = place
            worker = self._workers.get(number)
            if worker is None:
                continue
            if worker.skips(topic, found.offset):
                log.warning("a record is skipped", topic=topic, partition=number, offset=found.offset)
                self._intake.pass_by(place, found.offset, worker)
            elif time.monotonic() > found.since + UNREADABLE_SECONDS:
                self._give_up([number])
                self._intake.pause(number)
                self._halt(number, ProtocolError(f"{topic}/{number} offset {found.offset} cannot be read: {found.why}"))

    def _give_way(self, number: int) -> None:
        """Another owner is there: serve the partition again only in a new generation of the group."""
        self._ownership.fenced(number, time.monotonic(), generation(self._group_metadata))

    def _rejoin_if_fenced(self) -> None:
        """Join the group anew if a fenced partition is still ours after a while."""
        numbers = self._ownership.fenced_too_long(time.monotonic())
        if numbers:
            log.warning("Rejoining the consumer group: fenced partitions are still assigned", partitions=numbers)
            self._consumer.unsubscribe()
            self._subscribe()

    def _take_over(self, numbers: Sequence[int], *, assign: bool = False) -> dict[tuple[str, int], int]:
        """Fence the former owners, then read the checkpoints, then serve.

        Returns:
            Where to start reading, by (topic, partition).
        """
        if not numbers:
            return {}
        began = time.monotonic()
        with ThreadPoolExecutor(len(numbers)) as pool:
            deliveries = dict(zip(numbers, pool.map(self._fence, numbers), strict=True))
        owned = {number: delivery for number, delivery in deliveries.items() if delivery is not None}
        starts: dict[tuple[str, int], int] = {}
        for number, delivery in owned.items():
            starts |= self._serve(number, delivery, began, assign=assign)
        return starts

    def _deliver(self, number: int) -> Delivery:
        kafka, channel = self._settings.polled_connection(), self._channel.channel
        transactional_id, patience = channel.transactional_id(number), self._lessons_of(number).volume.patience
        if self._settings.delivery == "at_least_once":
            commit = self._commits.serve(number)
            return PlainDelivery(kafka, transactional_id, channel.discard_topic, commit, patience)
        return TransactionalDelivery(kafka, transactional_id, patience, channel.relay_group)

    def _lessons_of(self, number: int) -> Lessons:
        settings, topic = self._settings, self._channel.channel.discard_topic
        return self._lessons.setdefault(
            number, Lessons(settings.batch_policy(), topic, request_seconds(settings.kafka))
        )

    def _fence(self, number: int) -> Delivery | None:
        try:
            return self._deliver(number)
        except DeliveryError as error:
            self._lessons_of(number).volume.be_impatient()
            self._try_later(number, str(error))
            if error.fenced:
                self._give_way(number)
            return None

    def _try_later(self, number: int, reason: str) -> None:
        log.warning("a partition cannot be taken over yet", partition=number, reason=reason)
        self._ownership.try_later(number, time.monotonic())

    def _serve(self, number: int, delivery: Delivery, began: float, *, assign: bool) -> dict[tuple[str, int], int]:
        failpoint("relay.fenced")
        try:
            deliver_again = self._settings.distrusted_checkpoint == "deliver_again"
            committed = read_checkpoints(self._consumer, self._channel, number, deliver_again=deliver_again)
            if not deliver_again:
                word = self._settings.hanging_transaction
                refuse_undone_end(self._settings.connection(), self._channel, number, committed[0], word)
            verify_discards(self._admin, self._channel, number)
            ledger = restore_ledger(
                self._consumer,
                self._channel,
                number,
                committed,
                self._settings.check_policy(),
                self._settings.parking_policy(),
                self._settings.body_policy(),
                ordered=self._settings.ordering == "key",
                deliver_again=deliver_again,
                skip_lost=self._settings.skips_lost(number),
            )
            # What lies below the head and is unsettled is fetched by the worker.
            committed[0] = TopicPartition(committed[0].topic, number, ledger.half_checkpoint().head)
            committed[1] = TopicPartition(committed[1].topic, number, ledger.op_checkpoint().offset)
            if not assign:
                self._intake.read_from(committed)
        except (UnsafeError, ProtocolError) as error:
            delivery.close()
            self._halt(number, error)
            return {}
        except KafkaUnreachable as error:
            delivery.close()
            self._wait_for_end(number, error, str(error), assign=assign)
            return {}
        except KafkaException as error:
            delivery.close()
            why = why_unreadable(error, self._settings.connection(), self._channel, number)
            self._wait_for_end(number, why, f"reading its checkpoint failed: {why}", assign=assign)
            return {}
        self._intake.start_at(number, *(tp.offset for tp in committed))
        decoder = Decoder(self._channel.discard.max_message_bytes)
        halves = HalfReader(self._settings.connection(), self._channel.channel, number, decoder)
        worker = PartitionWorker(
            number,
            self._channel,
            ledger,
            delivery,
            halves,
            decoder,
            DiscardReader(self._settings.connection(), self._channel, number),
            self._leftovers(ledger, delivery, halves),
            self._topics,
            Gate(self._settings.gate_policy(), self._channel.channel, number, self._allowed),
            self._current_group_metadata,
            self._checks,
            self._settings.batch_policy(),
            self._lessons_of(number),
            began,
        )
        self._workers[number] = worker
        self._ownership.served(number)
        self._halts.end([number])
        worker.start()
        return {(tp.topic, tp.partition): tp.offset for tp in committed}

    def _wait_for_end(self, number: int, error: KafkaUnreachable, reason: str, *, assign: bool) -> None:
        """Try later, after what hangs was ended (R51); not while the group waits for an assignment."""
        self._try_later(number, reason)
        if assign or not isinstance(error, HeldBackError):
            return
        settings = self._settings
        try:
            end_hanging(settings.connection(), self._admin, self._channel, number, settings.hanging_transaction)
        except (DeliveryError, OutboxError) as failure:
            log.warning("A hanging transaction was not ended", partition=number, reason=str(failure))

    def _leftovers(self, ledger: Ledger, delivery: Delivery, halves: HalfReader) -> Leftovers:
        if not isinstance(delivery, TransactionalDelivery):
            return NoLeftovers()
        kafka, group = self._settings.connection(), self._channel.channel.relay_group
        return TransactionalLeftovers(kafka, self._admin, group, ledger, delivery, halves)

    def _current_group_metadata(self) -> bytes:
        """Metadata of the subscribed consumer; without a generation it would fence nobody (H5)."""
        metadata = self._group_metadata
        if generation(metadata) < 0:
            raise DeliveryError("the consumer is in no generation of its group")
        return metadata

    def _look_for_op_ends(self) -> None:
        """Idle op partitions: see their end, so that overdue transactions may be asked about."""
        if time.monotonic() - self._op_end_asked < OP_END_SECONDS:
            return
        for number, worker in self._workers.items():
            now = worker.wants_op_end()
            if now is not None:
                self._op_end_asked = time.monotonic()
                if self._intake.is_at_op_end(number):
                    worker.saw_op_end(now)


def _cause(failure: BaseException | None) -> str:
    """Return the label of a failure."""
    if isinstance(failure, DeliveryError):
        return "fenced" if failure.fenced else "kafka_transaction"
    return "cluster" if isinstance(failure, OutboxError) else "bug"


def _needed_rights(channel: Channel) -> dict[str, set[AclOperation]]:
    """Return the rights on the channel's topics without which nothing can be served."""
    read, write = AclOperation.READ, AclOperation.WRITE
    return {
        channel.half_topic: {read},
        channel.op_topic: {read},
        channel.check_topic: {write},
        channel.discard_topic: {read, write},
    }
