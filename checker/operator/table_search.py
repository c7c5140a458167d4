"""Searches message tables for one transaction, by the xid that its id carries. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import psycopg

from checker.operator.row_story import RowFindings
from checker.operator.timeline import EventKind, Findings, TimelineEvent, born_ms
from outbox._operations.source_report import read_committed
from outbox._operations.table_connection import table_connection
from outbox._operations.table_view import DeliveredRow, FoundRow, TableView
from outbox._postgres.message_table import MessageTable
from outbox._rules.source_progress import Committed, Progress
from outbox._service.settings import TableSettings
from outbox._table.table_outcome import ask_table_outcome
from outbox.errors import ConfigurationError, UsageError
from outbox.outcome import Outcome
from outbox.protocol.identifiers import started_us_of, xid_of
from outbox.protocol.names import Channel

ROWS = 10_000
"""Rows of the transaction that are read at most."""


class TableSearch:
    """One search.

    Args:
        kafka: librdkafka properties; None: the progress in Kafka is not read.
    """

    def __init__(self, kafka: Mapping[str, str] | None, channel: Channel, found: Findings) -> None:
        self._kafka = kafka
        self._channel = channel
        self._found = found
        self._rows = RowFindings()

    def search(self, tables: Mapping[str, TableSettings]) -> RowFindings:
        """Look into all tables; note each database that does not answer."""
        is_ours = born_ms(self._found.transaction_id) is not None  # ids of table mode are UUIDs of version 7
        for source, settings in tables.items():
            if not (is_ours or settings.is_foreign):
                continue
            try:
                names = settings.message_names()
                with table_connection(source, names, settings.connection_string()) as connection:
                    self._look(source, MessageTable(names), connection)
            except ConfigurationError as error:
                self._found.unread.append((f"table of source {source}", str(error)))
        return self._rows

    def _look(self, source: str, table: MessageTable, connection: psycopg.Connection) -> None:
        id_, view = self._found.transaction_id, TableView(table, connection)
        try:
            outcome = ask_table_outcome(table.names, id_, connection)
        except UsageError:  # no transaction of this database has the xid
            return
        if outcome is Outcome.ROLLED_BACK and not view.was_rolled_back(xid_of(id_)):
            outcome = Outcome.TOO_OLD  # it has no row in this table: it may have some in others
        progress, committed = view.progress(), self._committed(source)
        waiting, discarded = view.find(id_, ROWS)  # after the progress: what has gone since was delivered
        delivered = view.find_delivered(id_, ROWS)  # after the rows: their evidence is there when they have gone
        self._rows.outcomes[source] = outcome
        if outcome is Outcome.OPEN and (pid := view.backend_of(xid_of(id_))) is not None:
            self._rows.backends[source] = pid
        self._found.databases.append(source)
        self._found.note(
            TimelineEvent(
                started_us_of(id_) // 1_000, EventKind.LOCAL, source, None, None, None, f"xid {xid_of(id_)}: {outcome}"
            )
        )
        self._note(source, waiting, discarded, progress[1] if progress else None, committed)
        for row in delivered:
            detail = f"for {row.topic}, group {row.group}, batch {row.batch}"
            event = TimelineEvent(row.delivered_ms, EventKind.DELIVERED, source, None, None, row.id, detail)
            self._take(source, row, event)

    def _committed(self, source: str) -> Committed | None:
        if self._kafka is None:
            return None
        try:
            return read_committed(self._kafka, self._channel, source)
        except ConfigurationError as error:
            self._found.unread.append((f"progress of source {source} in Kafka", str(error)))
            return None

    def _note(
        self,
        source: str,
        waiting: Iterable[FoundRow],
        discarded: Iterable[FoundRow],
        progress: Progress | None,
        committed: Committed | None,
    ) -> None:
        is_named = progress is not None and self._found.transaction_id in progress.transactions
        batch = frozenset(progress.ids if progress and is_named else ())
        is_delivered = bool(progress and committed == (progress.batch, progress.incarnation, progress.nonce))
        for row in waiting:
            what = EventKind.IN_BATCH if row.id in batch else EventKind.WAITS
            number = f", batch {progress.batch}" if progress and row.id in batch else ""
            detail = f"for {row.topic}, group {row.group}{number}"
            self._take(source, row, TimelineEvent(row.started_us // 1_000, what, source, None, None, row.id, detail))
            if row.id in batch and is_delivered:
                self._rows.delivered.add(row.id)
        for row in discarded:
            detail = f"for {row.topic}, group {row.group}: {row.reason}: {row.detail}"
            event = TimelineEvent(row.discarded_ms, EventKind.REFUSED, source, None, None, row.id, detail)
            self._take(source, row, event)

    def _take(self, source: str, row: FoundRow | DeliveredRow, event: TimelineEvent) -> None:
        self._found.note(event)
        self._rows.sources.add(source)
        if self._found.position in {None, row.id}:
            self._rows.topics.add(row.topic)
            since = self._rows.since_ms
            self._rows.since_ms = row.stamped_ms if since is None else min(since, row.stamped_ms)
