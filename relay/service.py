"""The relay's main loop: one subscribed consumer, one worker for each half partition that this process owns."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from outbox.cluster import admin_client, checked_properties
from outbox.errors import OutboxError
from outbox.protocol.errors import ProtocolError
from outbox.service.contract_watch import ContractWatch
from outbox.service.exits import UnsafeError
from outbox.service.health import Health
from outbox.topics import TopicCache
from relay import metrics
from relay.checks import CheckSender
from relay.delivery import TRANSACTION_TIMEOUT_MS, Delivery, DeliveryError
from relay.discard_reader import DiscardReader
from relay.gate import Gate
from relay.intake import Intake
from relay.partition import PartitionWorker
from relay.real_topics import watch_real_topics
from relay.restore import read_checkpoints, restore_ledger
from relay.settings import RelaySettings

POLL_SECONDS = 0.1
CONSUME_AT_ONCE = 10_000
OP_END_SECONDS = 0.2
RETRY_SECONDS = 1.0
FENCED_SECONDS = 5.0
"""How long a fenced partition waits for a new generation of the group before this process asks for one."""
STOP_SECONDS = TRANSACTION_TIMEOUT_MS / 1000 + 5
DRAIN_SECONDS = 4.0
"""So long the open Kafka transaction may take when the process is asked to stop; then its next owner does it anew."""
_GENERATION = slice(7, 11)  # librdkafka's opaque metadata: "CGMDv2:", then the generation in this machine's byte order

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
        self._topics = TopicCache(admin, writing=True)
        self._allowed = settings.allow_list()
        self._real_topics = watch_real_topics(admin, self._topics)
        self._checks = CheckSender(settings.polled_connection(), self._channel.channel)
        self._workers: dict[int, PartitionWorker] = {}
        self._unserved: dict[int, float] = {}  # partition: when to try again (monotonic)
        self._fenced: dict[int, float] = {}  # partition: when it was fenced (monotonic)
        self._op_end_asked = 0.0
        self._group_metadata = b""
        with checked_properties():
            self._consumer = Consumer(self._consumer_config())
        self._intake = Intake(self._consumer, self._channel, self._contract.soon)

    def _consumer_config(self) -> dict[str, object]:
        return {
            "auto.offset.reset": "error",  # a checkpoint out of range stops the relay (R22)
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 100_000,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 2_000,
            **self._settings.polled_connection(),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "group.id": self._channel.channel.relay_group,
            "isolation.level": "read_committed",  # makes committed() wait for stable offsets (R18)
            "partition.assignment.strategy": "range",  # half p and op p go to one member (H6)
        }

    def run(self) -> None:
        """Serve until asked to stop.

        Raises:
            UnsafeError: Topics or checkpoints are not what they were: going on would be a guess.
        """
        self._subscribe()
        self._real_topics.start()
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
            self._give_up(list(self._workers), DRAIN_SECONDS)
            self._consumer.close()
            log.info("relay stopped")

    def _subscribe(self) -> None:
        names = [self._channel.half.name, self._channel.op.name]
        self._consumer.subscribe(names, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _turn(self) -> None:
        first = self._consumer.poll(POLL_SECONDS)
        messages = [first, *self._consumer.consume(CONSUME_AT_ONCE, 0)] if first is not None else []
        self._group_metadata = self._consumer.consumer_group_metadata()
        self._intake.hand_over(messages, self._workers)
        self._watch_workers()
        self._rejoin_if_fenced()
        self._take_over([p for p, at in self._unserved.items() if time.monotonic() >= at])
        self._intake.throttle(self._workers)
        self._look_for_op_ends()
        self._checks.poll()
        self._tell()
        self._contract.check()
        self._real_topics.check()
        self._health.not_ready = self._not_ready()
        self._health.turned()

    def _tell(self) -> None:
        """How far the workers are behind what was fetched last."""
        metrics.SERVED.set(len(self._workers))
        for number, worker in self._workers.items():
            place = TopicPartition(self._channel.half.name, number)
            _, end = self._consumer.get_watermark_offsets(place, cached=True)
            metrics.LAG.labels(number).set(max(end - worker.head(), 0))

    def _not_ready(self) -> str | None:
        unserved = sorted(self._unserved.keys() | self._fenced.keys())
        return f"partitions {unserved} are not served yet" if unserved else self._contract.not_ready()

    # --- who owns what ------------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Serve the partition numbers of which both half and op partition are ours; pause the others."""
        self._group_metadata = consumer.consumer_group_metadata()
        self._refuse_new(partitions)
        numbers: dict[int, int] = defaultdict(int)
        for assigned in partitions:
            numbers[assigned.partition] += 1
        self._unserved = dict.fromkeys((p for p, topics in numbers.items() if topics == 2), 0.0)  # noqa: PLR2004 - half and op
        starts = self._take_over(list(self._unserved), assign=True)
        consumer.assign(
            [
                TopicPartition(tp.topic, tp.partition, starts.get((tp.topic, tp.partition), OFFSET_END))
                for tp in partitions
            ]
        )
        idle = [tp for tp in partitions if tp.partition not in self._workers]
        self._intake.assigned(partitions, idle)
        log.info("partitions assigned", serving=sorted(self._workers), paused=sorted({tp.partition for tp in idle}))

    def _refuse_new(self, partitions: Sequence[TopicPartition]) -> None:
        """A channel that grew while it is served: ordering keys have moved (R29)."""
        new = sorted({tp.partition for tp in partitions if tp.partition >= self._channel.partitions})
        if new:
            raise UnsafeError(
                f"partitions {new} are new, the channel had {self._channel.partitions}: ordering keys move to other "
                "partitions; see docs/operations.md before this channel is served again"
            )
        self._contract.soon()

    def _revoked(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._give_up({tp.partition for tp in partitions})
        self._unserved.clear()
        self._fenced.clear()
        log.info("partitions revoked", partitions=sorted({tp.partition for tp in partitions}))

    def _give_up(self, numbers: Iterable[int], seconds: float = STOP_SECONDS) -> None:
        workers = [self._workers.pop(number) for number in list(numbers) if number in self._workers]
        with ThreadPoolExecutor(max(len(workers), 1)) as pool:
            list(pool.map(lambda worker: worker.stop(seconds), workers))
        if late := [worker.partition for worker in workers if worker.is_alive()]:
            log.warning("an open batch did not end in time, its next owner does it anew", partitions=late)
        for worker in workers:
            metrics.forget(worker.partition)

    def _watch_workers(self) -> None:
        """A worker that failed is replaced; one that was fenced is given up until the next generation."""
        for number, worker in list(self._workers.items()):
            if worker.is_alive():
                continue
            failure = worker.failure
            del self._workers[number]
            worker.stop(STOP_SECONDS)
            metrics.forget(number)
            metrics.FAILURES.labels(_cause(failure)).inc()
            self._topics.forget()
            self._contract.soon()
            if isinstance(failure, ProtocolError):
                raise failure  # a newer format, or a checkpoint that cannot be written: nothing may be skipped
            if not isinstance(failure, (DeliveryError, OutboxError)):
                raise RuntimeError(f"partition {number} failed") from failure  # noqa: TRY004 - not about a type
            log.warning("a partition is taken over anew", partition=number, reason=str(failure))
            self._intake.pause(number)
            self._give_way(number, failure)

    def _give_way(self, number: int, failure: DeliveryError | OutboxError) -> None:
        """Try again soon; but after fencing only in a new generation, or two owners fence each other for ever."""
        if isinstance(failure, DeliveryError) and failure.fenced:
            self._fenced[number] = time.monotonic()
        else:
            self._unserved[number] = time.monotonic() + RETRY_SECONDS

    def _rejoin_if_fenced(self) -> None:
        """Join the group anew if a fenced partition is still ours after a while.

        Nobody else owns it then: the coordinator fenced its producer because a transaction had timed out.
        """
        if self._fenced and time.monotonic() - min(self._fenced.values()) > FENCED_SECONDS:
            log.warning("fenced partitions are still ours, the group is joined anew", partitions=sorted(self._fenced))
            self._fenced.clear()
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

    def _fence(self, number: int) -> Delivery | None:
        try:
            return Delivery(self._settings.polled_connection(), self._channel.channel.transactional_id(number))
        except DeliveryError as error:
            self._try_later(number, str(error))
            return None

    def _try_later(self, number: int, reason: str) -> None:
        log.warning("a partition cannot be taken over yet", partition=number, reason=reason)
        self._unserved[number] = time.monotonic() + RETRY_SECONDS

    def _serve(self, number: int, delivery: Delivery, began: float, *, assign: bool) -> dict[tuple[str, int], int]:
        try:
            committed = read_checkpoints(self._consumer, self._channel, number)
            ledger = restore_ledger(
                self._consumer,
                self._channel,
                number,
                committed,
                self._settings.check_policy(),
                self._settings.parking_policy(),
                ordered=self._settings.ordering == "key",
            )
            if not assign:
                self._intake.read_from(committed)
        except KafkaException as error:
            delivery.close()
            self._try_later(number, f"reading its checkpoint failed: {error.args[0].str()}")
            return {}
        self._intake.start_at(number, *(tp.offset for tp in committed))
        worker = PartitionWorker(
            number,
            self._channel,
            ledger,
            delivery,
            DiscardReader(self._settings.connection(), self._channel.channel, number),
            self._topics,
            Gate(self._settings.gate_policy(), self._channel.channel, number, self._allowed),
            self._current_group_metadata,
            self._checks.ask,
            self._settings.batch_messages,
            began,
        )
        self._workers[number] = worker
        self._unserved.pop(number, None)
        worker.start()
        return {(tp.topic, tp.partition): tp.offset for tp in committed}

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
    """The label of a failure."""
    if isinstance(failure, DeliveryError):
        return "fenced" if failure.fenced else "kafka_transaction"
    return "cluster" if isinstance(failure, OutboxError) else "bug"


def generation(group_metadata: bytes) -> int:
    """The generation in a consumer's group metadata, -1 if it is in none."""
    return int.from_bytes(group_metadata[_GENERATION], sys.byteorder, signed=True)
