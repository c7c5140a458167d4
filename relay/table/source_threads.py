"""The table sources of one relay process: a thread for each, which waits for its turn as the owner."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import NamedTuple

import psycopg
import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from outbox._kafka.channel import ChannelDescription
from outbox._postgres.dsn import query_problem
from outbox._service.channels.channel_context import current_channel, enter_channel, thread_pool
from outbox._service.exit_codes import UnsafeError, reason_of, traceback_of
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError, OutboxError
from relay import metrics
from relay.delivery.call_watch import overdue
from relay.delivery.producer import DeliveryError
from relay.delivery.sending import BatchFeedback
from relay.delivery.topic_lookup import HangingTransactions, TopicLookups
from relay.delivery.transactional_delivery import TransactionalDelivery, request_seconds
from relay.recovery.hanging_checkpoint import HeldBackError, end_hanging
from relay.recovery.hanging_transactions import OwnHangingTransactions
from relay.settings import RelaySettings
from relay.table import row_telemetry as report
from relay.table.admission import Admission
from relay.table.foreign.foreign_table import ForeignTable
from relay.table.kafka_progress import KafkaProgress, RowAuthor
from relay.table.owned_table import POOLED, OwnedTable, open_session, was_delivered
from relay.table.source_table import SourceTable
from relay.table.table_source import TableSource

OWNER_SECONDS = 0.5
"""Pause before a source that has another owner is tried again."""
INTRUDER_TRIES = 20
"""Tries between two looks at who holds the owner's lock."""
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 4.0
"""Pause after a failure; it doubles up to this."""
DSN_SECONDS = 10.0
"""Pause between two looks whether the connection string is still the one of the session."""
HALTED_SECONDS = 5.0
"""Pause before a halted source is looked at again: an operator may have acted."""
LINGER_MS = "5"
"""Larger record batches cost Kafka less. The end of a batch waits for nothing: a flush sends what there is."""
STOP_SECONDS = 5.0
"""Time for the open Kafka transactions of all sources when the process is asked to stop."""

log = structlog.get_logger()


class _Cluster(NamedTuple):
    """What the sources of a process share."""

    settings: RelaySettings
    admin: AdminClient
    channel: ChannelDescription
    lookups: TopicLookups


class _SourceThread(threading.Thread):
    """Serves one table source for as long as it can be its owner."""

    def __init__(self, name: str, table: TableSettings, cluster: _Cluster) -> None:
        super().__init__(name=f"table-{name}", daemon=True)
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self._source, self._settings, self._cluster = name, table, cluster
        settings = cluster.settings
        self._feedback = BatchFeedback(
            settings.batch_policy(), cluster.channel.channel.discard_topic, request_seconds(settings.kafka)
        )
        self._channel = current_channel()
        self._pause = PAUSE_SECONDS
        self._dsn, self._dsn_at = "", 0.0
        self.halted, self.unserved = "", "it is not taken over yet"
        self._session: int | None = None  # the thread that runs the statements
        self._is_owner = False

    def run(self) -> None:
        """Take over, serve, and again after each failure."""
        enter_channel(self._channel)
        metrics.begin_table(self._source)
        try:
            while not self.stop.is_set():
                self._attempt()
        except BaseException as error:  # noqa: BLE001 - the service reads it, and ends: not even halting was possible
            self.failure = error

    def _attempt(self) -> None:
        try:
            self._own()
        except UnsafeError as error:
            self._halt(error)
        except (psycopg.errors.DuplicatePreparedStatement, psycopg.errors.InvalidSqlStatementName) as error:
            self._halt(UnsafeError(f"Table source {self._source}: {query_problem(error)}: {POOLED}"))
        except psycopg.Error as error:
            self._later(query_problem(error))
        except KafkaException as error:
            self._later(error.args[0].str())
        except (DeliveryError, OutboxError) as error:
            self._later(str(error))
        except Exception as error:  # noqa: BLE001 - it is logged, and must not reach what else the process serves (R81)
            self._halt(error)
        finally:
            metrics.TABLE_SOURCES.labels(self._source, metrics.OWNED).set(0)

    def _halt(self, error: Exception) -> None:
        """Wait until an operator has acted: nothing may be skipped or repeated."""
        reason = reason_of(error)
        if reason != self.halted:
            log.error("Table source halted", source=self._source, reason=reason, exc_info=traceback_of(error))
        self.halted, self.unserved = reason, ""
        report.table_unserved(self._source)
        metrics.TABLE_SOURCES.labels(self._source, metrics.SOURCE_HALTED).set(1)
        if self._is_owner:
            with suppress(psycopg.Error, OutboxError), closing(self._connect()) as table:
                table.note_halt(reason)
        self.stop.wait(HALTED_SECONDS)

    def _later(self, reason: str) -> None:
        self.unserved = reason
        report.table_unserved(self._source)
        log.warning("Table source not served yet", source=self._source, reason=reason, seconds=self._pause)
        self.stop.wait(self._pause)
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def _own(self) -> None:
        self._is_owner = False
        with closing(self._connect()) as table:
            is_owner = table.try_own()
            table.verify()
            if not is_owner:
                table.check()  # now, rather than at the failover
            tries = 0
            while not is_owner:
                if tries % INTRUDER_TRIES == 0:
                    if tries:  # a relay that finds the source halted gives the lock back sooner
                        self._passed()
                    self._look_for_intruder(table)
                self._require_same_string()
                if self.stop.wait(OWNER_SECONDS):
                    return
                is_owner, tries = table.try_own(), tries + 1
            self._is_owner = True
            table.require_session()
            table.progress()  # a foreign table reads its columns with it
            report.table_figures(self._source, table.figures())  # also if Kafka does not answer
            self._serve(table)

    def _look_for_intruder(self, table: OwnedTable) -> None:
        """Report a session that holds the owner's lock and may not deliver, or does nothing (R67, R81)."""
        self.unserved = table.intruder()
        if self.unserved:
            report.table_unserved(self._source)
            log.error("Table source not served: its owner does not deliver it", reason=self.unserved)
        else:
            report.forget_table(self._source)  # the owner has the figures

    def _require_same_string(self) -> None:
        """End a session to what the file of the connection string named before."""
        if time.monotonic() > self._dsn_at + DSN_SECONDS:
            self._dsn_at = time.monotonic()
            if self._settings.connection_string() != self._dsn:
                raise ConfigurationError("its connection string has changed")

    def _connect(self) -> OwnedTable:
        table = ForeignTable if self._settings.is_foreign else SourceTable
        self._dsn = self._settings.connection_string()
        return table(self._source, self._settings, open_session(self._settings, self._feedback.volume.patience))

    def _delivery(self, kafka: KafkaProgress) -> TransactionalDelivery:
        """Return an initialised producer; a former owner cannot commit any more."""
        settings, patience = self._cluster.settings, self._feedback.volume.patience
        connection = {"linger.ms": LINGER_MS, **settings.polled_connection()}
        try:
            return TransactionalDelivery(connection, kafka.group, patience, kafka.group)
        except DeliveryError:
            self._feedback.not_taken_over(source=self._source)
            raise

    def _hanging(self, table: OwnedTable, delivery: TransactionalDelivery) -> HangingTransactions:
        settings, admin, description, _ = self._cluster
        author, group = RowAuthor(table, is_delivered=True), description.channel.relay_group
        return OwnHangingTransactions(settings.connection(), admin, group, author, delivery)

    def _serve(self, table: OwnedTable) -> None:
        settings, channel = self._cluster.settings, self._cluster.channel.channel
        progress = KafkaProgress(settings.connection(), channel, self._source, settings.hanging_transaction)
        with closing(progress) as kafka:
            try:
                if self.halted:  # it must not fence another copy, which may be served (R73)
                    was_delivered(self._source, table.progress(), kafka.read())
                with closing(self._delivery(kafka)) as delivery:
                    self._deliver(table, delivery, kafka)
            except HeldBackError as error:
                log.warning("Progress of a table source held back", source=self._source, reason=str(error))
                self._end_hanging(table, kafka)

    def _end_hanging(self, table: OwnedTable, kafka: KafkaProgress) -> None:
        """End a hanging transaction that hides the progress in Kafka (R51)."""
        settings, admin, channel, _ = self._cluster
        author = RowAuthor(table, is_delivered=False)
        word = settings.hanging_transaction
        if word == "decide" and table.progress().delivered > kafka.shown():
            word = "commit"  # it was acknowledged, and its rows are deleted
        end_hanging(settings.connection(), admin, channel.channel, kafka.owner, lambda _progress: author, word)

    def _deliver(self, table: OwnedTable, delivery: TransactionalDelivery, kafka: KafkaProgress) -> None:
        _, _, description, lookups = self._cluster
        channel = description.channel
        gate = lookups.gate(self._source)
        admission = Admission(gate, channel, table.origin_bytes)
        lookup = lookups.lookup(admission, gate, self._hanging(table, delivery), self._feedback.refusals)
        with thread_pool(1) as session:
            self._session = session.submit(threading.get_ident).result()
            source = TableSource(table, delivery, kafka, admission, lookup, self._feedback, self.stop.wait, session)
            source.take_over()
            self._pause = PAUSE_SECONDS
            metrics.TABLE_SOURCES.labels(self._source, metrics.OWNED).set(1)
            source.serve(self._turned)

    def overdue(self) -> str:
        """Return for which call this source has waited long; empty: for none."""
        return overdue(self.ident) or overdue(self._session)

    def _turned(self) -> None:
        self._passed()
        self.unserved = ""
        self._require_same_string()

    def _passed(self) -> None:
        """Note that what halted the source has passed: a turn has ended well, here or in another relay."""
        self.halted = ""
        metrics.TABLE_SOURCES.labels(self._source, metrics.SOURCE_HALTED).set(0)


class TableSources:
    """The table sources of a relay process. One that fails never stops another, or the half partitions."""

    def __init__(
        self, settings: RelaySettings, admin: AdminClient, channel: ChannelDescription, lookups: TopicLookups
    ) -> None:
        cluster = _Cluster(settings, admin, channel, lookups)
        self._threads: Mapping[str, _SourceThread] = {
            name: _SourceThread(name, table, cluster) for name, table in settings.tables.items()
        }

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def check(self) -> None:
        for name, thread in self._threads.items():
            if thread.failure is not None:
                raise RuntimeError(f"table source {name} failed: {thread.failure!r}") from thread.failure

    def not_ready(self) -> str | None:
        """Return why the relay is not ready, for probes; None if each source is served here, or by another relay."""
        threads = self._threads.items()
        halted = [f"table source {name} is halted: {thread.halted}" for name, thread in threads if thread.halted]
        unserved = [f"table source {name} is not served: {one.unserved}" for name, one in threads if one.unserved]
        unserved += [f"table source {name}: {why}" for name, one in threads if (why := one.overdue())]
        return "; ".join(halted + unserved) or None

    def stop(self) -> None:
        """Let open Kafka transactions finish, and end all; one that does not end in time is left as it is."""
        for thread in self._threads.values():
            thread.stop.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads.values():
            if thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0))
        if late := [name for name, thread in self._threads.items() if thread.is_alive()]:
            log.warning("Table sources did not end in time; their next owner repeats the open batch", sources=late)
