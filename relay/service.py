"""The relay's main loop: one subscribed consumer, one worker for each half partition that this process owns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import product

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from outbox._failpoints import failpoint
from outbox._kafka.admin import checked_properties
from outbox._service.channels.channel_threads import ServiceControl
from outbox._service.exit_codes import UnsafeError
from outbox._service.membership import Membership, not_joined
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel
from relay import metrics
from relay.half.kafka.offset_commits import OffsetCommits
from relay.half.serving.check_back import CheckSender
from relay.half.serving.commits import GroupMetadata
from relay.half.serving.intake import Intake, LogEnds
from relay.half.serving.served import ServedPartitions
from relay.half.serving.take_over import TakeOver
from relay.settings import RelaySettings
from relay.table_service import LOOK_SECONDS, TableService

POLL_SECONDS = 0.1
IDLE_POLL_SECONDS = 0.25
"""While nothing is to be done: a process may have many idle channels. Records and rebalances end it."""
FIGURES_SECONDS = 1.0
CONSUME_AT_ONCE = 10_000
OP_END_SECONDS = 0.2
DRAIN_SECONDS = 4.0
"""Time for the open Kafka transaction when the process is asked to stop; then its next owner does it again."""

UNREADABLE_SECONDS = 5.0
"""Time to deliver what is before a record that cannot be read, before its half partition halts."""

log = structlog.get_logger()


class RelayService(TableService):
    """The relay of a channel with half mode: of its half partitions, and of its table sources."""

    def __init__(self, settings: RelaySettings, control: ServiceControl, channel: Channel) -> None:
        super().__init__(settings, control, channel)
        metrics.show_partitions()
        self._read = [topic.name for topic in (self._channel.half, self._channel.op, self._channel.verdict)]
        self._ends = LogEnds(self._admin, dict.fromkeys(self._read, self._channel.partitions))
        self._beside.append(self._ends.watch)
        self._checks = CheckSender(settings.polled_connection(), self._channel.channel)
        self._op_end_asked = self._progress_at = self._looked_at = 0.0
        self._group = GroupMetadata()
        self._commits = OffsetCommits()
        with checked_properties():
            self._consumer = Consumer(self._consumer_config())
        self._membership = Membership(self._consumer, stays=bool(settings.group_instance_id))
        self._intake = Intake(self._consumer, self._channel, self._contract.soon)
        take_over = TakeOver(
            self._settings,
            self._admin,
            self._channel,
            self._consumer,
            self._group,
            self._commits,
            self._checks,
            self._lookups,
        )
        self._served = ServedPartitions(
            take_over,
            self._consumer,
            self._intake,
            self._group,
            self._commits,
            self._contract,
            self._topics,
            self._stop.is_set,
        )

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
            "on_commit": self._commits.acknowledged,
        }

    def run(self) -> None:
        """Serve until asked to stop."""
        self._subscribe()
        super().run()

    def _end(self) -> None:
        self._served.give_up_all(DRAIN_SECONDS)
        self._membership.leave()
        metrics.show_partitions()

    def _subscribe(self) -> None:
        self._membership.subscribe(self._read, self._assigned, self._revoked)

    def _turn(self) -> None:
        first = self._consumer.poll(self._poll_seconds())
        messages = [first, *self._consumer.consume(CONSUME_AT_ONCE, 0)] if first is not None else []
        if messages:
            failpoint("relay.polled")
        self._group.newest = self._consumer.consumer_group_metadata()
        arrivals = {number: worker.arrivals for number, worker in self._served.workers.items()}
        self._intake.hand_over(messages, arrivals)
        self._commits.send(self._consumer)
        if time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._look_after_all()

    def _look_after_all(self) -> None:
        """Do what need not follow each record."""
        self._served.replace_failed()
        self._rejoin_if_fenced()
        self._look_at_what_is_outside()
        self._look_at_what_is_unreadable()
        self._served.take_over_due()
        self._end_if_all_are_halted()
        self._intake.throttle({number: worker.arrivals for number, worker in self._served.workers.items()})
        self._look_for_op_ends()
        self._checks.poll()
        self._look_at_progress()
        self._look_after_threads()

    def _poll_seconds(self) -> float:
        """Return how long to wait for records: less while a worker has work, or waits for what this thread sees."""
        is_busy = self._settings.delivery == "at_least_once" or any(
            worker.has_work() or worker.op_end_wanted_at(verdict=False) is not None
            for worker in self._served.workers.values()
        )
        return POLL_SECONDS if is_busy or self._served.ownership.waiting() else IDLE_POLL_SECONDS

    def _look_at_progress(self) -> None:
        if time.monotonic() - self._progress_at > FIGURES_SECONDS:
            self._progress_at = time.monotonic()
            self._set_figures()
            self._served.look_for_stalls(lambda number: self._intake.is_behind(number, self._ends.of))

    def _set_figures(self) -> None:
        """Set the figures of what is served, and how far the workers are behind what was fetched last."""
        metrics.PARTITIONS.labels(metrics.SERVED).set(len(self._served.workers))
        metrics.PARTITIONS.labels(metrics.NOT_SERVED).set(len(self._served.ownership.waiting()))
        metrics.PARTITIONS.labels(metrics.HALTED).set(len(self._served.halts))
        for number, worker in self._served.workers.items():
            place = TopicPartition(self._channel.half.name, number)
            _, end = self._consumer.get_watermark_offsets(place, cached=True)
            metrics.LAG.labels(number).set(max(end - worker.head(), 0))

    def _not_ready(self) -> str | None:
        group = self._channel.channel.relay_group
        served = self._served.not_ready() or not_joined(self._group.newest, group)
        return self._ends.not_ready() or served or super()._not_ready()

    # --- who owns what ------------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Serve the partition numbers of which half, op and verdict partition are ours; pause the others."""
        self._group.newest = consumer.consumer_group_metadata()
        self._refuse_new(partitions)
        whole = self._served.ownership.assigned((tp.topic, tp.partition) for tp in partitions)
        starts = self._served.take_over(whole, assign=True)
        consumer.assign(
            [
                TopicPartition(tp.topic, tp.partition, starts.pop((tp.topic, tp.partition), OFFSET_END))
                for tp in partitions
            ]
        )
        idle = [tp for tp in partitions if tp.partition not in self._served.workers]
        self._intake.assigned(partitions, idle)
        self._go_on_with_earlier_halves(starts)
        log.info(
            "Partitions assigned", serving=sorted(self._served.workers), paused=sorted({tp.partition for tp in idle})
        )

    def _refuse_new(self, partitions: Sequence[TopicPartition]) -> None:
        """Refuse a channel that grew while it is served: ordering keys have moved (R29)."""
        new = sorted({tp.partition for tp in partitions if tp.partition >= self._channel.partitions})
        if new:
            raise UnsafeError(
                f"channel {self._channel.channel.name} has new partitions {new}, it had {self._channel.partitions}: "
                "ordering keys move to other partitions. Before you serve this channel again, see "
                "docs/operations/recovery.md"
            )
        self._contract.soon()

    def _go_on_with_earlier_halves(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Partitions that came in an earlier step of the assignment were paused until their counterparts came."""
        for (topic, number), offset in starts.items():
            try:
                self._intake.read_from([TopicPartition(topic, number, offset)])
            except KafkaException as error:
                self._served.give_up([number])
                self._served.try_later(number, f"reading from its checkpoint failed: {error.args[0].str()}")

    def _revoked(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        failpoint("relay.revoking")
        numbers = self._served.ownership.revoked((tp.topic, tp.partition) for tp in partitions)
        self._served.revoke(numbers)
        log.info("Partitions revoked", partitions=sorted(numbers))

    def _end_if_all_are_halted(self) -> None:
        """End the process if it has nothing else to do: no half partition, and no table source."""
        cause = self._served.halts.of_all(self._channel.partitions)
        if cause is not None and self._tables is None:
            raise cause

    def _look_at_what_is_outside(self) -> None:
        """Take partitions over again whose next offset is gone: their checkpoints show what is lost."""
        for topic, number in self._intake.take_outside():
            if number in self._served.workers:
                self._served.pause(number, f"the next offset of {topic}/{number} is gone from the topic")

    def _look_at_what_is_unreadable(self) -> None:
        """Pass by what an operator wants skipped; halt otherwise, after what is before it was delivered."""
        for place, found in self._intake.unreadable().items():
            topic, number = place
            worker = self._served.workers.get(number)
            if worker is None:
                continue
            if worker.skips(topic, found.offset):
                log.warning("Record skipped", topic=topic, partition=number, offset=found.offset)
                self._intake.pass_by(place, found.offset, worker.arrivals)
            elif time.monotonic() > found.since + UNREADABLE_SECONDS:
                why = f"{topic}/{number} offset {found.offset} cannot be read: {found.why}"
                self._served.give_up([number])
                self._intake.pause(number)
                self._served.halt(number, ProtocolError(why))

    def _rejoin_if_fenced(self) -> None:
        """Join the group again if a fenced partition is still ours after a while."""
        numbers = self._served.ownership.fenced_too_long(time.monotonic())
        if numbers:
            log.warning("Rejoining the consumer group: fenced partitions are still assigned", partitions=numbers)
            self._consumer.unsubscribe()
            self._subscribe()

    def _look_for_op_ends(self) -> None:
        """Idle op and verdict partitions: see their end, so that overdue transactions may be asked about."""
        if time.monotonic() - self._op_end_asked < OP_END_SECONDS:
            return
        for (number, worker), verdict in product(self._served.workers.items(), (False, True)):
            now = worker.op_end_wanted_at(verdict=verdict)
            if now is not None:
                self._op_end_asked = time.monotonic()
                if self._intake.is_at_op_end(number, verdict=verdict):
                    worker.arrivals.add_op_end(now, verdict=verdict)
