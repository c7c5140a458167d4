"""Resume a halted table source: its three numbers, what would happen, and the one statement that sets them (R55)."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, LiteralString, NamedTuple

import psycopg

from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import TRY_OWN, Counts, source_name
from outbox._rules.source_progress import Committed, Progress
from outbox.errors import UsageError
from outbox.operator.reading.delivered_search import Delivered, DeliveredSearch
from outbox.operator.reading.source_report import read_committed
from outbox.operator.reading.table_connection import table_connection
from outbox.operator.reading.table_view import TableView
from outbox.operator.state.gap import Gap
from outbox.operator.state.repairs import NOT_BEGUN, Repair, repair
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.names import Channel
from outbox.settings import TableNames

LOCK_SECONDS = 15.0
"""A relay that finds a halted source owns it for a moment, every few seconds."""

LOCK_PAUSE_SECONDS = 0.05

_NOTHING = Repair("")

AT_ONCE = 10_000
"""Rows that are looked up with one statement."""

_UNPROVED = (
    "the real topics do not prove which rows were delivered; --not-delivered-to TOPIC takes your word for one, "
    "--deliver-again delivers all rows"
)

_SINCE: LiteralString = (
    "SELECT topic, count(*), min(least(timestamp, {started} / 1000)) FROM {message} GROUP BY topic"  # least skips NULL
)
_IDS: LiteralString = "SELECT id, xid::text::bigint, {started} FROM {message} WHERE id = ANY (%s)"
_SET: LiteralString = (
    "WITH moved AS (UPDATE {source} SET batch = %(to)s, delivered = %(to)s, nonce = CAST(%(to_nonce)s AS uuid),"
    " delivered_nonce = CAST(%(to_nonce)s AS uuid), ids = '{{}}', xids = '{{}}', starts = '{{}}' WHERE id = 0"
    " AND name = %(name)s AND incarnation = CAST(%(incarnation)s AS uuid) AND batch = %(batch)s"
    " AND nonce = CAST(%(nonce)s AS uuid) AND delivered = %(delivered)s RETURNING batch),"
    " gone AS (DELETE FROM {message} AS m USING moved, unnest(%(ids)s::bigint[], %(xids)s::text[]::xid8[],"
    " %(starts)s::bigint[]) AS r (id, xid, started) WHERE {same} RETURNING {deleted}), {evidence},"
    " counted AS (SELECT (SELECT count(*) FROM gone) AS gone, cardinality(%(ids)s::bigint[]) AS named, recorded,"
    " 0 AS moved, 0 AS refused, 0 AS kept FROM recorded) {counted}"
)


class Rows(enum.StrEnum):
    """What becomes of rows that may have been delivered."""

    SKIP_DELIVERED = "skip delivered"
    DELIVER_AGAIN = "deliver again"


class Source(NamedTuple):
    """A table source and how to reach it."""

    name: str
    names: TableNames
    dsn: str

    def connection(self, *, writes: bool = False) -> AbstractContextManager[psycopg.Connection[Any]]:
        """Connect to its database; see `table_connection`."""
        return table_connection(self.name, self.names, self.dsn, writes=writes)


@dataclass
class Resumption:
    """One halted source, and what is to become of it.

    Args:
        rows: What becomes of rows that may have been delivered; None: nothing is decided, only looked.
        most: Records that are read of a real topic at most.
        trusted: Topics of which the operator declares that rows not found there were not delivered.
    """

    source: Source
    kafka: Mapping[str, str]
    channel: Channel
    rows: Rows | None
    most: int
    trusted: frozenset[str] = frozenset()

    progress: Progress = NOT_BEGUN
    committed: Committed | None = None
    repair: Repair = _NOTHING
    waiting: int = 0
    in_delivery: int = 0
    delivered: Sequence[tuple[int, int, int]] = ()
    gaps: Sequence[Gap] = ()
    deleted: int | None = None
    _since: dict[str, int] = field(default_factory=dict)
    _now_ms: int = 0

    def find(self, passed: Callable[[int], None]) -> None:
        """Read the numbers, and search for delivered rows if these are to be skipped. Nothing is written."""
        with self.source.connection() as connection:
            self._look(connection)
            if self.repair.halted and not self.repair.refusal and self.rows is Rows.SKIP_DELIVERED:
                searched = self._search(passed)
                self.gaps = [gap for gap in searched.gaps if gap.topic not in self.trusted]
                self.delivered = self._delivered(connection, searched)

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        table = MessageTable(self.source.names)
        view = TableView(table, connection)
        self.repair = self._compare(view)
        found = connection.execute(table.compose(_SINCE)).fetchall()
        self._since = {topic: int(since) for topic, _, since in found}
        self.waiting = sum(count for _, count, _ in found)
        self.in_delivery = len(self.progress.ids) - self.progress.missing
        self._now_ms = view.now_ms()

    def _compare(self, view: TableView) -> Repair:
        name, self.progress = view.progress() or (self.source.name, NOT_BEGUN)
        self.committed = read_committed(self.kafka, self.channel, self.source.name, stable=True)
        return repair(self.source.name, name, self.progress, self.committed)

    def _search(self, passed: Callable[[int], None]) -> Delivered:
        name = self.source.name
        search = DeliveredSearch(self.kafka, self.channel, [name], self.most, self._now_ms, passed)
        return search.search(self._since)

    def _delivered(self, connection: psycopg.Connection[Any], searched: Delivered) -> list[tuple[int, int, int]]:
        """Return id, xid and start of the rows whose messages are on their real topics."""
        statement, wanted = MessageTable(self.source.names).compose(_IDS), list(searched.transactions)
        return [
            (id_, xid, us)
            for start in range(0, len(wanted), AT_ONCE)
            for id_, xid, us in connection.execute(statement, (wanted[start : start + AT_ONCE],)).fetchall()
            if table_transaction_id(xid, us) in searched.transactions[id_]
        ]

    def resume(self) -> None:
        """Set the numbers and delete delivered rows, in one durable statement, as the owner of the source.

        Raises:
            UsageError: The source has another owner, or its numbers are not those that were seen.
        """
        seen = self.progress, self.committed
        table = MessageTable(self.source.names)
        with self.source.connection(writes=True) as connection:
            view = TableView(table, connection)
            self._own(connection, view)
            self.repair = self._compare(view)
            if (self.progress, self.committed) != seen:
                raise self._changed()
            try:
                row = connection.execute(table.compose(_SET), self._parameters()).fetchone()
            except psycopg.errors.InvalidTextRepresentation as error:
                raise UsageError(f"Table source {self.source.name}: {Counts.of(error) or error}") from error
            if row is None:
                raise self._changed()
            self.deleted = len(self.delivered)

    def _parameters(self) -> dict[str, Any]:
        return {
            "to": self.repair.batch,
            "to_nonce": self.repair.nonce,
            "proven": self.repair.batch,
            "name": self.source.name,
            "incarnation": self.progress.incarnation,
            "batch": self.progress.batch,
            "nonce": self.progress.nonce,
            "delivered": self.progress.delivered,
            "ids": [id_ for id_, _, _ in self.delivered],
            "xids": [str(xid) for _, xid, _ in self.delivered],
            "starts": [us for _, _, us in self.delivered],
        }

    def _own(self, connection: psycopg.Connection[Any], view: TableView) -> None:
        names, deadline = self.source.names, time.monotonic() + LOCK_SECONDS
        lock = source_name(names.schema, names.source)
        while connection.execute(TRY_OWN, (lock,)).fetchone() != (True,):
            if time.monotonic() > deadline:
                owner = view.owner()
                raise UsageError(
                    f"Table source {self.source.name} has an owner{f', pid {owner.pid}' if owner else ''}; nothing was "
                    "changed. See `outbox pending`; stop the relay that serves it, then run this again."
                )
            time.sleep(LOCK_PAUSE_SECONDS)

    @property
    def is_provable(self) -> bool:
        """Whether it is known of each row whether it was delivered, if that was asked."""
        return not self.gaps

    @property
    def outcome(self) -> str:
        """What became of the source, or can become of it."""
        if self.deleted is not None:
            return "resumed"
        if not self.repair.halted:
            return "not halted"
        return "refused" if self.why else "possible"

    @property
    def why(self) -> str:
        """Why it is refused; empty if it is not."""
        if self.repair.refusal or not self.repair.halted:
            return self.repair.refusal
        if self.gaps:
            return _UNPROVED
        return "" if self.rows else "decide on the rows: --skip-delivered or --deliver-again"

    def document(self) -> dict[str, Any]:
        return {
            "source": self.source.name,
            "outcome": self.outcome,
            "halted": self.repair.halted or None,
            "why": self.why or None,
            "batch": self.progress.batch,
            "delivered": self.progress.delivered,
            "kafka_batch": self.committed.batch if self.committed else None,
            "new_batch": self.repair.batch if self.repair.halted and not self.repair.refusal else None,
            "rows": self.waiting,
            "in_delivery": self.in_delivery,
            "rows_found_delivered": len(self.delivered),
            "rows_deleted": self.deleted,
            "warning": self.repair.warning or None,
            "not_searched": self.gaps,
        }

    def lines(self) -> Iterator[str]:
        kafka = self.committed.batch if self.committed else "none"
        yield f"table source {self.source.name}: {self.outcome}"
        yield f"newest batch {self.progress.batch}, delivered {self.progress.delivered}, batch in Kafka {kafka}"
        yield f"{self.waiting} rows, {self.in_delivery} of them of the newest batch"
        yield self.repair.halted
        yield self.why
        if self.repair.halted and not self.why:
            yield from self._consequences()
        yield from (f"not searched: {gap}" for gap in self.gaps)

    def _consequences(self) -> Iterator[str]:
        verb, count = "will be" if self.deleted is None else "were", len(self.delivered)
        twice = "; those that were delivered before are delivered twice"
        if self.rows is Rows.SKIP_DELIVERED:
            yield f"{count} rows, which are on their real topics, {verb} deleted"
            twice = ""
        yield f"the numbers {verb} set to {self.repair.batch}; a relay delivers {self.waiting - count} rows{twice}"
        yield self.repair.warning

    def _changed(self) -> UsageError:
        return UsageError(
            f"The numbers of table source {self.source.name} have changed meanwhile; nothing was changed. "
            "Run this again."
        )
