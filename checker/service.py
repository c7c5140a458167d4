"""The checker's main loop: check requests in, op markers out.

A request that gets lost here is no loss: the relay asks again. So offsets are committed as requests are handed on, and
a checker that dies at any point only delays a decision.
"""

import time
from collections import defaultdict
from collections.abc import Sequence

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # AclOperation is public, but not in its __all__
    AclOperation,
    AdminClient,
)

from checker import metrics
from checker.database import ServedDatabases
from checker.rules.verdicts import Answers, Verdict, op_entry
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from outbox._failpoints import failpoint
from outbox._kafka.admin import checked_properties, newest_records
from outbox._kafka.consumed_records import is_unreadable, seek_to_end
from outbox._rules.broker_clock import STALE_MS, RequestAges
from outbox._service.channels.channel_threads import ServiceControl
from outbox._service.contract_monitor import ContractWatch
from outbox._service.exit_codes import reason_of, traceback_of
from outbox._service.membership import Membership, not_joined, refuse_missing_right, require_rights
from outbox._service.settings import shared_admin
from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.errors import NewerFormatError
from outbox.protocol.half import Truth
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpSource, encode_ops

LOOK_SECONDS = 5.0
"""Time that Kafka has to name the newest requests when partitions are assigned."""

DROPPING_SECONDS = 10.0
"""The checker is not ready for this time after it dropped a stale request."""

WARN_SECONDS = 60.0
"""Minimum time between two warnings about stale requests."""

log = structlog.get_logger()


class Intake:
    """Read requests of the check topic, and drop those that are stale by the broker's time (R25).

    Stale requests are a backlog: the relay has repeated them since. Their databases should not do that work.

    Behind a record that cannot be unpacked, reading goes on at the partition's log end (R54).
    """

    def __init__(self, consumer: Consumer, group: str) -> None:
        self._consumer = consumer
        self._group = group
        self._unreadable: dict[int, tuple[Message, str]] = {}
        self._ages = RequestAges()
        self._dropped_at: float | None = None
        self._warned_at: float | None = None
        self._unlogged = 0

    def assigned(self, admin: AdminClient, partitions: Sequence[TopicPartition]) -> None:
        """Look up how far a backlog reaches. Where Kafka does not answer, nothing of it is dropped."""
        places = [(place.topic, place.partition) for place in partitions]
        for (_, partition), newest in newest_records(admin, places, LOOK_SECONDS).items():
            self._ages.note_newest(partition, *newest)

    def read(self, messages: Sequence[Message]) -> list[CheckRequest]:
        """Return the requests that a database can answer; listeners answer their own."""
        requests = [request for message in messages if (request := self._read(message)) is not None]
        self._pass_unreadable()
        self._log_stale()
        return requests

    def not_ready(self) -> str | None:
        """Return why the checker is not ready, if it is dropping requests."""
        if self._dropped_at is None or time.monotonic() > self._dropped_at + DROPPING_SECONDS:
            return None
        return f"check requests older than {STALE_MS // 1000} s, or of a newer format, are being dropped"

    def _read(self, message: Message) -> CheckRequest | None:
        error = message.error()
        if error is not None:
            self._note(message, error)
            return None
        if self._is_stale(message):
            return None
        try:
            request = parse_check(message.value())
        except NewerFormatError as newer:
            metrics.DROPPED.labels("newer").inc()
            self._dropped_at = time.monotonic()
            place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
            log.error("Check request of a newer format dropped", **place, reason=str(newer))  # noqa: TRY400 - one line suffices
            return None
        except Exception as problem:  # noqa: BLE001 - one request must not end the checker, again and again (R81)
            metrics.DROPPED.labels("malformed").inc()
            why = {"error": reason_of(problem), "exc_info": traceback_of(problem)}
            log.warning("Check request malformed", offset=message.offset(), **why)
            return None
        return request if request.truth is Truth.ROW else None

    def _note(self, message: Message, error: KafkaError) -> None:
        if is_unreadable(error):
            self._unreadable[message.partition() or 0] = (message, error.str())
            return
        refuse_missing_right(error, "READ", {"group": self._group, "topic": message.topic() or ""})
        if error.fatal():
            raise KafkaException(error)
        log.warning("Consumer error", error=error.str())

    def _pass_unreadable(self) -> None:
        """Go on at the log end of each partition with an unreadable record, once for all its errors."""
        while self._unreadable:
            _, (message, reason) = self._unreadable.popitem()
            place = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
            metrics.DROPPED.labels("unreadable").inc()
            log.error("Check requests cannot be unpacked, reading continues at the log end", **place, reason=reason)
            try:
                seek_to_end(self._consumer, message)
            except KafkaException as error:  # it is assigned to another checker now, or the error comes again
                log.warning("Reading at the log end failed", **place, error=str(error.args[0]))

    def _is_stale(self, message: Message) -> bool:
        now = time.monotonic()
        place = message.partition() or 0, message.offset() or 0
        if not self._ages.is_stale(*place, message.timestamp()[1], int(now * 1000)):
            return False
        metrics.DROPPED.labels("stale").inc()
        self._dropped_at = now
        self._unlogged += 1
        return True

    def _log_stale(self) -> None:
        now = time.monotonic()
        if self._unlogged and (self._warned_at is None or now > self._warned_at + WARN_SECONDS):
            log.warning("Stale check requests dropped", count=self._unlogged, older_than_seconds=STALE_MS // 1000)
            self._warned_at, self._unlogged = now, 0


POLL_SECONDS = 0.1

READ_AT_ONCE = 5_000
"""Check requests read at once. No setting: a checker takes what is there, and never waits for so many."""


class CheckerService:
    """The checker of one channel."""

    def __init__(self, settings: CheckerSettings, control: ServiceControl) -> None:
        metrics.open_channel()
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
        self._databases = ServedDatabases(settings, self._report, reader)
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
        self._databases.start()
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
