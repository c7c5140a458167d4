"""The owner of one table source: committed rows to their real topics, exactly once and in order (R55).

One batch at a time: read a window of rows; name the batch in the database, in one durable transaction that also
deletes the batch before; write its records and its number in one Kafka transaction.

Two threads do this. The statements run in the one that has the session, and meanwhile the other one writes: while batch
n is written, it is named, and if its window was full, the window of batch n + 1 is read. Kafka commits the batch only
when it is named. If either fails, this owner ends, and the next one finds what both have done.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import psycopg
import structlog

from outbox._failpoints import failpoint
from outbox._rules.broker_clock import BrokerClock
from outbox._rules.source_progress import Committed, Progress, is_of_a_copy
from outbox.errors import TableError
from outbox.protocol.record import Record
from relay import metrics
from relay.delivery.delivery_telemetry import at_gate, became_visible, refused
from relay.delivery.rules.volume import rest
from relay.delivery.sending import BatchFeedback, Sending, Sent
from relay.delivery.topic_lookup import TopicLookup
from relay.delivery.transactional_delivery import Ready, TransactionalDelivery, at_once
from relay.table import row_telemetry as report
from relay.table.admission import Admission, Admitted
from relay.table.kafka_progress import KafkaProgress
from relay.table.owned_table import IDLE_SECONDS, OwnedTable, Window, was_delivered
from relay.table.rows import EPOCH_US, Row, id_of, records, service_and_start, size_of, topic_of, transactions_of, whole

IDLE_MIN_SECONDS = 0.001
IDLE_MAX_SECONDS = 0.05
"""Pause between two looks at an empty table; it doubles up to this."""

HEARTBEAT_SECONDS = 3_600.0
"""An idle source commits its progress again, so that it never expires."""

FIGURES_SECONDS = 5.0

PURGE_SECONDS = 60.0
"""Pause between two looks for old evidence, and old dead letters. While there is more, each turn purges."""

WAKE_SECONDS = 0.5
"""Pause between two looks for messages whose time has come."""

WAKE_AGAIN_SECONDS = 10.0
"""Pause after such a look has failed: delivery waits for it, as long as it takes."""

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
        session: The thread that runs the statements.
    """

    def __init__(
        self,
        table: OwnedTable,
        delivery: TransactionalDelivery,
        kafka: KafkaProgress,
        admission: Admission,
        lookup: TopicLookup,
        feedback: BatchFeedback,
        stopping: Callable[[float], bool],
        session: ThreadPoolExecutor,
    ) -> None:
        self._table, self._delivery, self._kafka = table, delivery, kafka
        self._admission, self._lookup, self._feedback = admission, lookup, feedback
        self._sending = Sending(delivery, lookup.gate, feedback, {"source": table.name})
        self._stopping = stopping
        self._clock = BrokerClock()  # of the database
        self._progress = Progress("", 0, 0, ())
        self._window, self._window_at = Window((), frozenset(), 0), 0.0
        self._session = session
        self._ahead: Future[Window] | None = None  # the next window, which is read while a batch is written
        self._growth = 1
        self._committed_at = time.monotonic()
        self._figures_at = 0.0
        self._rows_that_wait = report.RowsThatWait(table.name)
        self._purge_at = self._wake_at = 0.0
        self._verify_at = time.monotonic() + VERIFY_SECONDS

    def take_over(self) -> None:
        """Bring the database to the state that Kafka proves."""
        progress, committed = self._table.progress(), self._kafka.read()
        failpoint("relay.table_taken_over")
        if committed is not None and is_of_a_copy(progress, committed):
            # With a nonce that no copy of the database has: the other one halts, too (R73).
            self._delivery.commit((), self._kafka.offsets(committed._replace(nonce=str(uuid4()))), self._kafka.metadata)
        if was_delivered(self._table.name, progress, committed):
            self._progress = self._settle(progress)
        else:
            self._progress = self._table.move(progress, progress.undone())
        if committed is None:
            self._commit((), self._progress)
        log.info("Table source taken over", source=self._table.name, batch=self._progress.batch)

    def _settle(self, progress: Progress) -> Progress:
        """Delete the rows of the newest batch, which was delivered."""
        return progress if progress.delivered == progress.batch else self._table.move(progress, progress.settled())

    def serve(self, turned: Callable[[], None]) -> None:
        """Deliver until asked to stop."""
        idle = IDLE_MIN_SECONDS
        stop = self._stopping(idle)
        while not stop:
            found = self._turn()
            turned()
            if self._ahead is not None:
                stop = self._stopping(0)
                continue
            self._keep_up()
            self._wake()
            self._verify()
            busy = 0 if self._window.is_full else rest(len(self._window.rows))
            stop = self._stopping(busy if found else idle)
            idle = IDLE_MIN_SECONDS if found else min(2 * idle, IDLE_MAX_SECONDS)
        self._progress = self._settle(self._progress)

    # --- one turn

    def _turn(self) -> bool:
        """Deliver one batch; return whether there was anything to do."""
        self._window, self._window_at = Window((), frozenset(), 0), time.monotonic()
        try:
            return self._deliver_window()
        except (psycopg.OperationalError, TableError):
            self._be_modest()
            raise

    def _be_modest(self) -> None:
        """Read less from now on: the session was lost while a window was read, or worked on, or a row failed (R34)."""
        rows, volume = self._window.rows, self._feedback.volume
        messages, size = (len(rows), size_of(rows)) if rows else (volume.limit.messages, volume.limit.bytes)
        share = IDLE_SECONDS / max(time.monotonic() - self._window_at, IDLE_SECONDS)
        is_single = len(transactions_of(rows)) == 1 or messages == 1
        volume.timed_out(int(share * messages), int(share * size), is_single=is_single)

    def _deliver_window(self) -> bool:
        self._delivery.renew()
        self._lookup.describe_closed(_ms())
        self._lookup.describe_stale()
        self._admission.release_crowding()
        window = self._window = self._next_window()
        rows = self._whole(window)
        self._admission.look_up(rows)
        if self._lookup.describe_unknown() and self._read_released():
            return True  # the window is read again: it lacks what waited until now
        admitted = self._admission.take(rows, window.now, self._lookup.describe_again)
        at_gate(self._lookup.gate.take_news(), source=self._table.name)
        if window.rows and not rows:
            self._growth *= 2
            return True
        self._table.take(window, len(rows))
        return self._advance(admitted) or window.is_full

    def _next_window(self) -> Window:
        ahead, self._ahead = self._ahead, None
        window = ahead.result() if ahead else None
        if self._read_released() or window is None:
            window = self._session.submit(self._read).result()
        self._clock.saw(window.now, _ms())
        return window

    def _read_released(self) -> bool:
        """Read again what waits no longer; return whether there is such: a window that was read lacks it."""
        first = self._admission.take_released()
        if first is not None:
            self._table.read_again(first)
        return first is not None

    def _read(self) -> Window:
        limit = self._feedback.volume.limit
        return self._table.window(
            min(limit.messages * self._growth, max(WINDOW_ROWS, limit.messages)),
            min(limit.bytes * self._growth, max(WINDOW_BYTES, limit.bytes)),
            [*self._progress.ids, *self._admission.waiting()],
        )

    def _whole(self, window: Window) -> Sequence[Row]:
        """Return the rows of whole local transactions; none if the window must grow to have enough of them."""
        rows = window.rows
        if not window.beyond:
            return rows
        limit = self._feedback.volume.limit
        if limit.messages * self._growth >= WINDOW_ROWS and limit.bytes * self._growth >= WINDOW_BYTES:
            log.warning("Local transaction split: it is too large for one Kafka transaction", source=self._table.name)
            return rows
        count = whole(rows, window.beyond)
        return rows[:count] if 2 * count >= len(rows) else ()

    def _advance(self, admitted: Admitted) -> bool:
        progress, rows = self._progress, admitted.rows
        if not (rows or admitted.refused or progress.ids):
            if time.monotonic() - self._committed_at > HEARTBEAT_SECONDS:
                self._commit((), progress)
            return False
        self._growth = 1
        after = progress.named(str(uuid4()), tuple(map(id_of, rows))) if rows else progress.settled()
        step = self._session.submit(partial(self._table.move, progress, after, rows, admitted.refused))
        self._progress = after  # if the step fails, this owner ends
        try:
            if rows:
                self._read_ahead()
                self._deliver(rows, step.result)
        finally:
            step.result()  # its failure comes before that of the delivery, which may only follow from it
        for transaction, finding in admitted.refused:
            refused(transaction.id, transaction.service, finding)
        return bool(rows)

    def _read_ahead(self) -> None:
        """Read the next window while this one is written, unless it is time to use the session for something else."""
        upkeep_at = min(self._figures_at, self._purge_at, self._wake_at, self._verify_at)
        if self._window.is_full and time.monotonic() < upkeep_at:
            self._ahead = self._session.submit(self._read)

    # --- out

    def _deliver(self, rows: Sequence[Row], named: Ready) -> None:
        messages = transactions_of(rows)
        sent = Sent(Counter(map(topic_of, rows)), partial(size_of, rows), len(messages) == 1)
        written = records(rows, messages, self._table.origin)
        self._sending.send(sent, partial(self._commit, written, self._progress, named), self._window_at)
        metrics.TRANSACTIONS.labels("delivered").inc(len(messages))
        became_visible(map(service_and_start, rows), self._clock.now(_ms()) * 1_000 - EPOCH_US)
        failpoint("relay.table_delivered")

    def _commit(self, written: Iterable[Record], progress: Progress, named: Ready = at_once) -> None:
        offsets = self._kafka.offsets(Committed(progress.batch, progress.incarnation, progress.nonce))
        with metrics.COMMIT_SECONDS.labels().time():
            self._delivery.commit(written, offsets, self._kafka.metadata, named)
        self._committed_at = time.monotonic()

    def _keep_up(self) -> None:
        """Purge old evidence and old dead letters, set the figures, and warn of what waits."""
        if time.monotonic() >= self._purge_at and not any([self._table.purge(), self._table.expire()]):
            self._purge_at = time.monotonic() + PURGE_SECONDS
        if time.monotonic() >= self._figures_at:
            self._figures_at = time.monotonic() + FIGURES_SECONDS
            self._table.note_halt(None)  # a turn has ended well
            report.table_figures(self._table.name, self._table.figures())
            metrics.TABLE_ROWS.labels(self._table.name, metrics.WAITING_ROWS).set(len(self._admission.waiting()))
            self._rows_that_wait.warn(self._admission.by_topic(), time.monotonic())

    def _wake(self) -> None:
        if time.monotonic() >= self._wake_at and not (more := self._table.wake()):
            self._wake_at = time.monotonic() + (WAKE_AGAIN_SECONDS if more is None else WAKE_SECONDS)

    def _verify(self) -> None:
        """Look at session and tables again: a table may be altered while it is served (R75, R76)."""
        if time.monotonic() >= self._verify_at:
            self._verify_at = time.monotonic() + VERIFY_SECONDS
            self._table.require_session()
            self._table.verify()


def _ms() -> int:
    return time.monotonic_ns() // 1_000_000
