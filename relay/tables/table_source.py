"""The owner of one table source: committed rows to their real topics, exactly once and in order (R55).

One batch at a time: read a window of rows; name the batch in the database, in one durable transaction that also
deletes the batch before; write its records and its number in one Kafka transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from uuid import uuid4

import structlog

from outbox._failpoints import failpoint
from outbox._rules.broker_clock import BrokerClock
from outbox._rules.source_progress import Committed, Progress, is_of_a_copy
from outbox.protocol.record import Record
from relay import metrics
from relay import telemetry as report
from relay.batching.batch import Batch
from relay.kafka.producer import DeliveryError
from relay.kafka.transactional_delivery import Delivery
from relay.serving.batch_feedback import BatchFeedback
from relay.serving.topic_lookup import TopicLookup
from relay.tables.admission import Admission, Admitted
from relay.tables.kafka_progress import KafkaProgress
from relay.tables.owned_table import OwnedTable, Refusal, Window
from relay.tables.pauses import Pauses
from relay.tables.rows import RowTransaction, ids, records, transactions
from relay.tables.table_progress import was_delivered

HEARTBEAT_SECONDS = 3_600.0
"""An idle source commits its progress again, so that it never expires."""

FIGURES_SECONDS = 5.0

PURGE_SECONDS = 60.0
"""Pause between two looks for old evidence. While there is more, each turn purges."""

VERIFY_SECONDS = 15.0
"""Pause between two looks at the contract of the tables, and at the session."""

WINDOW_ROWS = 40_000
WINDOW_BYTES = 134_217_728
"""A window that begins with an incomplete transaction grows up to this; then the transaction is split."""

log = structlog.get_logger()


class TableSource:
    """The owner of a table source.

    Args:
        table: The message table or foreign table, owned by this session.
        delivery: Its transactional producer: the former owner is fenced.
    """

    def __init__(
        self,
        table: OwnedTable,
        delivery: Delivery,
        kafka: KafkaProgress,
        admission: Admission,
        lookup: TopicLookup,
        feedback: BatchFeedback,
        stopping: Callable[[float], bool],
    ) -> None:
        self._name = table.name
        self._table = table
        self._delivery = delivery
        self._kafka = kafka
        self._admission = admission
        self._lookup = lookup
        self._feedback = feedback
        self._stopping = stopping
        self._clock = BrokerClock()  # of the database
        self._progress = Progress("", 0, 0, ())
        self._growth = 1
        self._committed_at = time.monotonic()
        self._figures_at = 0.0
        self._rows_that_wait = report.RowsThatWait(self._name)
        self._purge_at = 0.0
        self._verify_at = time.monotonic() + VERIFY_SECONDS

    def take_over(self) -> None:
        """Bring the database to the state that Kafka proves."""
        progress, committed = self._table.progress(), self._kafka.read()
        failpoint("relay.table_taken_over")
        if committed is not None and is_of_a_copy(progress, committed):
            self._halt_copies(committed)
        if was_delivered(self._name, progress, committed):
            self._progress = self._settle(progress)
        else:
            self._progress = self._table.move(progress, progress.undone())
        if committed is None:
            self._commit((), self._progress)
        log.info("Table source taken over", source=self._name, batch=self._progress.batch)

    def _halt_copies(self, committed: Committed) -> None:
        """Give the batch in Kafka a nonce that no copy of the database has: the other one halts, too (R73)."""
        self._delivery.commit((), self._kafka.offsets(committed._replace(nonce=str(uuid4()))), self._kafka.metadata)

    def _settle(self, progress: Progress) -> Progress:
        """Delete the rows of the newest batch, which was delivered."""
        return progress if progress.delivered == progress.batch else self._table.move(progress, progress.settled())

    def serve(self, turned: Callable[[], None]) -> None:
        """Deliver until asked to stop.

        Raises:
            DeliveryError: A Kafka transaction failed: take over again.
        """
        pauses = Pauses(self._name, self._table.notifications, self._stopping)
        stop = pauses.first()
        while not stop:
            found = self._turn()
            turned()
            self._set_figures()
            self._purge()
            self._verify()
            waiting, seconds = bool(self._admission.waiting()), self._delivery.rest_ms / 1_000
            stop = pauses.after(found=found, waiting=waiting, seconds=seconds)
        self._progress = self._settle(self._progress)

    # --- one turn

    def _turn(self) -> bool:
        """Deliver one batch; return whether there was anything to do."""
        now = _ms()
        self._delivery.renew()
        self._lookup.describe_closed(now)
        self._lookup.describe_stale()
        self._admission.release_crowding()
        window = self._read()
        found = transactions(window.rows)
        beyond = self._beyond(window, found)
        admitted = self._admission.take(found, beyond, window.now, self._lookup.describe_again)
        if self._lookup.describe_unknown(admitted.ready) and not admitted.ready:
            return True  # what waited for them may have been released: the window is read again
        report.at_gate(self._lookup.gate.take_news(), source=self._name)
        if self._is_stuck(window, admitted):
            self._growth *= 2
            return True
        return self._advance(admitted)

    def _read(self) -> Window:
        limit = self._feedback.volume.limit
        skip = [*self._progress.ids, *self._admission.waiting()]
        window = self._table.window(
            min(limit.messages * self._growth, max(WINDOW_ROWS, limit.messages)),
            min(limit.bytes * self._growth, max(WINDOW_BYTES, limit.bytes)),
            skip,
        )
        self._clock.saw(window.now, _ms())
        return window

    def _beyond(self, window: Window, found: Iterable[RowTransaction]) -> set[RowTransaction]:
        """Return the transactions that have rows behind the window, unless it cannot grow any more."""
        if not window.beyond:
            return set()
        if self._is_largest():
            log.warning("Local transaction split: it is too large for one Kafka transaction", source=self._name)
            return set()
        return {transaction for transaction in found if transaction.local in window.beyond}

    def _is_largest(self) -> bool:
        limit = self._feedback.volume.limit
        return limit.messages * self._growth >= WINDOW_ROWS and limit.bytes * self._growth >= WINDOW_BYTES

    def _is_stuck(self, window: Window, admitted: Admitted) -> bool:
        """Return whether most of the window are parts of transactions, which would be read again each time."""
        taken = len(ids(admitted.ready)) + len(_refusals(admitted))
        return bool(window.beyond) and 2 * taken < len(window.rows) and not self._is_largest()

    def _advance(self, admitted: Admitted) -> bool:
        progress = self._progress
        if not (admitted.ready or admitted.refused or progress.ids):
            self._heartbeat()
            return False
        self._growth = 1
        ready = admitted.ready
        after = progress.named(str(uuid4()), tuple(ids(ready))) if ready else progress.settled()
        self._progress = self._table.move(progress, after, ready, _refusals(admitted))
        self._admission.settled(admitted)
        for transaction, finding in admitted.refused:
            report.refused(transaction, finding)
        if ready:
            self._deliver(ready)
        return bool(ready)

    # --- out

    def _deliver(self, ready: Sequence[RowTransaction]) -> None:
        written, batch, began = records(ready, self._table.origin), Batch((), ready, (), ()), time.monotonic()
        self._limit_batches({record.topic for record in written})
        try:
            self._commit(written, self._progress)
        except DeliveryError as error:
            seconds = time.monotonic() - began
            closed = self._feedback.failed(batch, written, error, seconds, _ms())
            report.failed(error, closed, self._feedback.volume.limit, source=self._name)
            raise
        self._feedback.delivered(batch, written, time.monotonic() - began, timed_out=self._delivery.timed_out)
        metrics.TRANSACTIONS.labels("delivered").inc(len(ready))
        delivered = ((found.group, found.decided_at, len(found.halves)) for found in ready)
        report.became_visible(delivered, self._clock.now(_ms()))
        failpoint("relay.table_delivered")

    def _limit_batches(self, topics: set[str]) -> None:
        known = self._lookup.gate.topics
        found = (known.get(topic) for topic in topics)
        limits = [topic.max_message_bytes for topic in found if topic and not topic.lacks]
        if limits:
            self._delivery.limit_batches(min(limits))

    def _commit(self, written: Sequence[Record], progress: Progress) -> None:
        offsets = self._kafka.offsets(Committed(progress.batch, progress.incarnation, progress.nonce))
        with metrics.COMMIT_SECONDS.labels().time():
            self._delivery.commit(written, offsets, self._kafka.metadata)
        self._committed_at = time.monotonic()

    def _heartbeat(self) -> None:
        if time.monotonic() - self._committed_at > HEARTBEAT_SECONDS:
            self._commit((), self._progress)

    def _purge(self) -> None:
        if time.monotonic() >= self._purge_at and not self._table.purge():
            self._purge_at = time.monotonic() + PURGE_SECONDS

    def _verify(self) -> None:
        """Look at session and tables again: a table may be altered while it is served (R75, R76)."""
        if time.monotonic() >= self._verify_at:
            self._verify_at = time.monotonic() + VERIFY_SECONDS
            self._table.require_session()
            self._table.verify()

    def _set_figures(self) -> None:
        if time.monotonic() - self._figures_at < FIGURES_SECONDS:
            return
        self._figures_at = time.monotonic()
        report.table_figures(self._name, self._table.figures())
        metrics.TABLE_ROWS.labels(self._name, metrics.WAITING_ROWS).set(len(self._admission.waiting()))
        self._rows_that_wait.tell(self._admission.by_topic(), time.monotonic())


def _refusals(admitted: Admitted) -> list[Refusal]:
    return [
        Refusal(transaction.local, id_, str(finding.reason), finding.detail)
        for transaction, finding in admitted.refused
        for id_ in ids([transaction])
    ]


def _ms() -> int:
    return time.monotonic_ns() // 1_000_000
