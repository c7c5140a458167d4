"""What of the check topic is looked at: requests that can be read, that are recent, and that a row answers."""

import time
from collections.abc import Sequence

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from checker import metrics
from outbox._kafka.admin import newest_records
from outbox._kafka.consumed_records import is_unreadable, seek_to_end
from outbox._rules.broker_clock import STALE_MS, RequestAges
from outbox._service.exit_codes import reason_of, traceback_of
from outbox._service.membership import refuse_missing_right
from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.errors import NewerFormatError
from outbox.protocol.half import Truth

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
