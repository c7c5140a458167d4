"""Resume a halted table source: its three numbers, what would happen, and the one statement that sets them (R55)."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, LiteralString, NamedTuple
from uuid import uuid4

import psycopg

from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import TRY_OWN, Counts, source_name
from outbox._postgres.table_contract import breaches
from outbox._rules.source_progress import Committed, Progress, is_foreign
from outbox.errors import UsageError
from outbox.operator.reading.delivered_search import Delivered, DeliveredSearch
from outbox.operator.reading.source_report import read_committed
from outbox.operator.reading.table_connection import table_connection
from outbox.operator.reading.table_view import TableView
from outbox.operator.state.gap import Gap
from outbox.operator.state.repairs import NEW, NOT_BEGUN, Repair, repair
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

_ALTERED = (
    "it has the id and xid of {}, and another start: look at both, and delete the row if its created_at was altered"
)
_XID_FROM = 19
"""Where the xid begins in a transaction id."""

_NEVER_AGAIN = (
    "--deliver-again delivers no row that outbox_delivered or outbox_discarded has. --skip-delivered deletes these; "
    "publish again what Kafka has lost"
)

_SINCE: LiteralString = (
    "SELECT topic, count(*), min(least(timestamp, {started} / 1000)) FROM {message} GROUP BY topic"  # least skips NULL
)
_IDS: LiteralString = "SELECT id, xid::text::bigint, {started}, topic FROM {message} WHERE id = ANY (%s)"
_BACK: LiteralString = (
    "SELECT id, xid::text::bigint, {started}, same FROM (SELECT id, xid, created_at, (SELECT bool_or(l.created_at ="
    " m.created_at) FROM {left} AS l WHERE l.xid = m.xid AND l.ids @> m.id) AS same FROM {message} AS m) AS found"
    " WHERE same IS NOT NULL"
)
_DROP: LiteralString = (
    "DELETE FROM {message} AS m USING unnest(%s::bigint[], %s::text[]::xid8[], %s::bigint[]) AS r (id, xid, started)"
    " WHERE {same}"
)
# A progress that was lost begins again as that of what Kafka has, and what was purged before is not known any more.
_SET: LiteralString = (
    "WITH moved AS (INSERT INTO {source} AS was (id, name, incarnation, batch, delivered, nonce, delivered_nonce,"
    " highest, purged_until) SELECT 0, %(name)s, CAST(%(to_incarnation)s AS uuid), %(to)s, %(to)s,"
    " CAST(%(to_nonce)s AS uuid), CAST(%(to_nonce)s AS uuid), greatest(%(highest)s, CASE WHEN %(lost)s THEN"
    " (SELECT greatest(max(first_id), max(upper(ids))) FROM {delivered}) END), now()"
    " ON CONFLICT (id) DO UPDATE SET (incarnation, batch, delivered, nonce, delivered_nonce, highest, purged_until) ="
    " (excluded.incarnation, excluded.batch, excluded.delivered, excluded.nonce, excluded.delivered_nonce,"
    " greatest(was.highest, excluded.highest),"
    " CASE WHEN was.highest = 0 THEN now() ELSE was.purged_until END),"
    " ids = '{{}}', xids = '{{}}', starts = '{{}}' WHERE was.name = %(name)s"
    " AND was.incarnation::text = %(incarnation)s AND was.batch = %(batch)s AND was.nonce = CAST(%(nonce)s AS uuid)"
    " AND was.delivered = %(delivered)s"
    " RETURNING batch, (batch, nonce, delivered, delivered_nonce, incarnation, cardinality(ids)) = (%(to)s,"
    " CAST(%(to_nonce)s AS uuid), %(to)s, CAST(%(to_nonce)s AS uuid), CAST(%(to_incarnation)s AS uuid), 0)"
    " AND highest >= %(highest)s AS is_set),"
    " gone AS (DELETE FROM {message} AS m USING moved, unnest(%(ids)s::bigint[], %(xids)s::text[]::xid8[],"
    " %(starts)s::bigint[]) AS r (id, xid, started) WHERE {same} RETURNING {deleted}), {evidence},"
    " counted AS (SELECT (SELECT count(*) FROM gone) AS gone, cardinality(%(ids)s::bigint[]) AS named, recorded,"
    " 0 AS moved, 0 AS refused, 0 AS kept FROM recorded) {counted}"
)


RowIdentity = tuple[int, int, int]
"""Id, xid and start of a row."""


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
        back: Rows that have left the table before, and wait again.
        delivered: Other rows that are on their real topics.
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
    back: Sequence[RowIdentity] = ()
    delivered: Sequence[RowIdentity] = ()
    gaps: Sequence[Gap] = ()
    deleted: int | None = None
    _since: dict[str, int] = field(default_factory=dict)
    _now_ms: int = 0
    _came_back: int = 0

    def find(self, passed: Callable[[int], None]) -> None:
        """Read the numbers, and search for delivered rows if these are to be skipped. Nothing is written."""
        with self.source.connection() as connection:
            self._look(connection)
            if self.repair.halted and not self.repair.refusal and self.rows is Rows.SKIP_DELIVERED:
                searched = self._search(passed)
                self.delivered = self._delivered(connection, searched)
                self.gaps = [*self.gaps, *(gap for gap in searched.gaps if gap.topic not in self.trusted)]

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        table = MessageTable(self.source.names)
        view = TableView(table, connection)
        left = connection.execute(table.compose(_BACK)).fetchall()
        self.back = [(id_, xid, us) for id_, xid, us, is_same in left if is_same]
        altered = [id_ for id_, _, _, is_same in left if not is_same]
        self.gaps = [Gap(f"row {id_}", _ALTERED.format("a row that has left the table")) for id_ in altered[:1]]
        self._came_back = len(left)
        self.repair = self._compare(view)
        found = connection.execute(table.compose(_SINCE)).fetchall()
        self._since = {topic: int(since) for topic, _, since in found}
        self.waiting = sum(count for _, count, _ in found)
        self.in_delivery = len(self.progress.ids) - self.progress.missing
        self._now_ms = view.now_ms()
        if broken := breaches(connection, table.places):  # that comes first (R75)
            self.repair = Repair("; ".join(f"{one.what}: {one.harm}" for one in broken), broken[0].fix)

    def _compare(self, view: TableView) -> Repair:
        not_begun = NOT_BEGUN._replace(lost=view.has_evidence())
        name, self.progress = view.progress() or (self.source.name, not_begun)
        self.committed = read_committed(self.kafka, self.channel, self.source.name, stable=True)
        return repair(self.source.name, name, self.progress, self.committed, self._came_back)

    def _search(self, passed: Callable[[int], None]) -> Delivered:
        origins = [] if self.progress.lost else [self.source.name]  # it may have been delivered under another name
        search = DeliveredSearch(self.kafka, self.channel, origins, self.most, self._now_ms, passed)
        return search.search(self._since)

    def _delivered(self, connection: psycopg.Connection[Any], searched: Delivered) -> list[RowIdentity]:
        """Return the rows whose messages are on their real topics; one that may be there is a gap."""
        statement, wanted = MessageTable(self.source.names).compose(_IDS), list(searched.transactions)
        delivered, altered = list[RowIdentity](), dict[str, int]()
        for start in range(0, len(wanted), AT_ONCE):
            for id_, xid, us, topic in connection.execute(statement, (wanted[start : start + AT_ONCE],)).fetchall():
                own, there = table_transaction_id(xid, us), searched.transactions[id_]
                if own in there:
                    delivered.append((id_, xid, us))
                elif own[_XID_FROM:] in {one[_XID_FROM:] for one in there}:
                    altered.setdefault(topic, id_)
        searched.gaps.extend(
            Gap(f"{topic}, row {id_}", _ALTERED.format("a message"), topic) for topic, id_ in altered.items()
        )
        return [row for row in delivered if row not in set(self.back)]

    def resume(self) -> None:
        """Set the numbers and delete delivered rows, in one durable transaction, as the owner of the source.

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
                with connection.transaction():
                    gone = connection.execute(table.compose(_DROP), _columns(self.back)).rowcount
                    row = connection.execute(table.compose(_SET), self._parameters()).fetchone()
                    if row is None or gone != len(self.back):
                        raise self._changed()
            except psycopg.errors.InvalidTextRepresentation as error:
                raise UsageError(f"Table source {self.source.name}: {Counts.of(error) or error}") from error
            self.deleted = len(self._skipped)

    @property
    def _skipped(self) -> list[RowIdentity]:
        return [*self.back, *self.delivered]

    def _parameters(self) -> dict[str, Any]:
        is_begun = self.repair.incarnation != NOT_BEGUN.incarnation
        ids, xids, starts = _columns(self.delivered)
        return {
            "to_incarnation": self.repair.incarnation if is_begun else str(uuid4()),
            "highest": max((id_ for id_, _, _ in self._skipped), default=0),
            "lost": self.progress.lost,
            "to": self.repair.batch,
            "to_nonce": self.repair.nonce,
            "proven": self.repair.batch,
            "name": self.source.name,
            "incarnation": self.progress.incarnation,
            "batch": self.progress.batch,
            "nonce": self.progress.nonce,
            "delivered": self.progress.delivered,
            "ids": ids,
            "xids": xids,
            "starts": starts,
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
        if self.rows is None:
            return "decide on the rows: --skip-delivered or --deliver-again"
        if self.rows is Rows.DELIVER_AGAIN and self._came_back:
            return _NEVER_AGAIN
        is_known = self.progress.lost or self.delivered
        return NEW if is_foreign(self.progress, self.committed) and not is_known else ""

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
            "rows_found_delivered": len(self._skipped),
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
        verb, count = "will be" if self.deleted is None else "were", len(self._skipped)
        twice = "; those that were delivered before are delivered twice"
        if self.rows is Rows.SKIP_DELIVERED:
            yield f"{len(self.delivered)} rows, which are on their real topics, {verb} deleted"
            yield f"{len(self.back)} rows, which had left the table before, {verb} deleted" if self.back else ""
            twice = ""
        yield f"the numbers {verb} set to {self.repair.batch}; a relay delivers {self.waiting - count} rows{twice}"
        yield self.repair.warning

    def _changed(self) -> UsageError:
        return UsageError(
            f"The numbers of table source {self.source.name} have changed meanwhile; nothing was changed. "
            "Run this again."
        )


def _columns(rows: Sequence[RowIdentity]) -> tuple[list[int], list[str], list[int]]:
    return [id_ for id_, _, _ in rows], [str(xid) for _, xid, _ in rows], [us for _, _, us in rows]
