"""The checker's main loop: check requests in, op markers out.

A request that gets lost here is no loss: the relay asks again. So offsets are committed as requests are handed on, and
a checker that dies at any point only delays a decision.
"""

from collections import defaultdict
from collections.abc import Sequence

import structlog
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # public, but not in its __all__

from checker import metrics
from checker.database import ServedDatabases
from checker.requests import Intake
from checker.rules.verdicts import Answers, Verdict, op_entry
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import Upkeep
from outbox._failpoints import failpoint
from outbox._kafka.admin import checked_properties
from outbox._service.channels.channel_threads import ServiceControl
from outbox._service.contract_monitor import ContractWatch
from outbox._service.membership import Membership, not_joined, refuse_missing_right, require_rights
from outbox._service.settings import shared_admin
from outbox.protocol.check import CheckRequest
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpSource, encode_ops

POLL_SECONDS = 0.1

READ_AT_ONCE = 5_000
"""Check requests read at once. No setting: a checker takes what is there, and never waits for so many."""

log = structlog.get_logger()


class CheckerService:
    """The checker of one channel."""

    def __init__(self, settings: CheckerSettings, control: ServiceControl) -> None:
        metrics.open_channel()
        self._settings = settings
        self._control = control
        self._admin = shared_admin(settings)
        self._op_error: KafkaError | None = None
        self._contract = ContractWatch(
            self._admin,
            settings.channel_names(),
            settings.contract(),
            metrics.TABLE.contract,
            settings.contract_interval_ms / 1000,
        )
        self._channel = self._contract.description
        require_rights(self._admin, _needed_rights(self._channel.channel))
        reader = DeliveryReader(settings.connection(), self._admin, self._channel)
        upkeep = Upkeep(settings, reader)
        self._databases = ServedDatabases(self._channel.channel.name, self._report, upkeep, reader.in_discard_topic)
        with checked_properties():
            self._producer = Producer(
                {
                    "enable.idempotence": True,
                    "linger.ms": 5,
                    **settings.polled_connection(),
                    "on_delivery": self._report_op,
                }
            )
            self._consumer = Consumer(
                {
                    "auto.offset.reset": "earliest",  # old requests are dropped by age
                    "session.timeout.ms": 10_000,
                    **settings.polled_connection(),
                    "enable.auto.commit": True,
                    "group.id": self._channel.channel.checker_group,
                    "partition.assignment.strategy": "range",
                }
            )
        self._membership = Membership(self._consumer)
        self._intake = Intake(self._consumer, self._channel.channel.checker_group)

    def run(self) -> None:
        """Serve until asked to stop."""
        self._databases.start(self._settings.all_databases())
        self._contract.start()
        self._membership.subscribe([self._channel.channel.check_topic], self._assigned)
        log.info("Checker started", databases=self._databases.names())
        try:
            while not self._control.stop.is_set():
                self._turn()
        finally:
            self._contract.stop()
            self._databases.stop()
            self._producer.flush(5)
            self._membership.leave()
            log.info("Checker stopped")

    def _turn(self) -> None:
        first = self._consumer.poll(POLL_SECONDS)
        messages = [first, *self._consumer.consume(READ_AT_ONCE, 0)] if first is not None else []
        unmapped = self._databases.ask(self._intake.read(messages))
        if unmapped:
            services = sorted({request.service for request in unmapped})
            log.error("Services without a database", services=services, count=len(unmapped))
            metrics.VERDICTS.labels(Verdict.UNMAPPED, "").inc(len(unmapped))
        self._producer.poll(0)
        self._databases.check()
        self._contract.check()
        self._refuse_op_error()
        self._control.health.not_ready = self._not_ready()
        self._control.health.turned()

    def _not_ready(self) -> str | None:
        joined = not_joined(self._consumer.consumer_group_metadata(), self._channel.channel.checker_group)
        return joined or self._contract.not_ready() or self._databases.not_ready() or self._intake.not_ready()

    def _refuse_op_error(self) -> None:
        """End if op markers may not be written: every decision would be repeated endlessly."""
        if self._op_error is not None:
            refuse_missing_right(self._op_error, "WRITE", {"topic": self._channel.verdict.name})

    def _assigned(self, _consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._intake.assigned(self._admin, partitions)

    def _report(self, requests: Sequence[CheckRequest], answers: Answers) -> None:
        """Send the op markers of a batch, in as few records as they fit into."""
        by_partition: dict[int, list[OpEntry]] = defaultdict(list)
        for request in {request.transaction_id: request for request in requests}.values():
            verdict, row = answers[request.transaction_id]
            entry = op_entry(request, verdict, row)
            if entry is not None:
                by_partition[entry.partition].append(entry)
        failpoint("checker.answering")
        for partition, entries in by_partition.items():
            for value, headers in encode_ops(entries, OpSource.CHECKER):
                self._producer.produce(self._channel.verdict.name, value, None, partition, None, None, 0, headers)
        self._producer.flush(10)
        failpoint("checker.answered")

    def _report_op(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._op_error = error
            log.warning("Op markers not sent, the relay asks again", error=error.str())


def _needed_rights(channel: Channel) -> dict[str, set[AclOperation]]:
    """Return the rights on the channel's topics that decisions require."""
    read, write = AclOperation.READ, AclOperation.WRITE
    return {channel.check_topic: {read}, channel.verdict_topic: {write}, channel.discard_topic: {read}}
