"""The SQL of a message table: windows of committed rows, and the one statement that moves its progress (R61)."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, LiteralString, cast

import psycopg
from psycopg.types.numeric import Int8BinaryLoader

from outbox._failpoints import failpoint
from outbox._postgres.ddl import missing_rights, written
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import PROGRESS
from outbox._postgres.table_errors import explained
from outbox._rules.source_progress import Progress
from outbox._service.exit_codes import UnsafeError
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.protocol.identifiers import table_transaction_id
from relay.table.id_floor import IdFloor
from relay.table.owned_table import HALTED, OwnedTable, Refusal, TableFigures, Window, is_bigint, may_prepare, refusals
from relay.table.rows import EPOCH_US, Row, id_of

PURGE_ROWS = 10_000
"""Rows of evidence that one statement purges, about as many as a batch adds."""

_BEGIN: LiteralString = "INSERT INTO {source} (id, name) VALUES (0, %s) ON CONFLICT (id) DO NOTHING"
# Another server has its own xids: there no evidence proves nothing about a transaction from before (R74).
_ARRIVED: LiteralString = (
    "UPDATE {source} SET server = here, purged_until = CASE WHEN server IS NULL THEN purged_until ELSE now() END"
    " FROM (SELECT system_identifier FROM pg_control_system()) AS this (here)"
    " WHERE id = 0 AND server IS DISTINCT FROM here"
)
_HIGHEST: LiteralString = (
    "SELECT highest, (SELECT pg_relation_filenode(tableoid) FROM {sequence}) FROM {source} WHERE id = 0"
)

# A row takes about 300 bytes beside what is counted. RESTART gives a sequence another file. The statement fails where
# ids were set back: the order of the rows is not that of their ids any more (R72).
_WINDOW: LiteralString = (
    "WITH since AS MATERIALIZED (SELECT CAST(CASE WHEN last_value - CAST(NOT is_called AS integer) < %(newest)s"
    " OR pg_relation_filenode(tableoid) <> CAST(%(ids_file)s AS oid) THEN 'ids were set back'"
    " ELSE %(floor)s::text END AS bigint) AS id FROM {sequence}),"
    " head AS MATERIALIZED (SELECT id, coalesce(octet_length(value), 0) + coalesce(octet_length(key), 0)"
    " + {header_bytes} + coalesce(octet_length(topic), 0) + coalesce(octet_length(service), 0) + 300 AS size"
    " FROM {message}"
    " WHERE id >= (SELECT id FROM since) AND id <> ALL (CAST(%(skip)s AS bigint[])) ORDER BY id LIMIT %(rows)s),"
    " sums AS (SELECT id, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS total FROM head),"
    " cut AS MATERIALIZED (SELECT coalesce(max(id) FILTER (WHERE total <= %(bytes)s), min(id)) AS last FROM sums)"
    " SELECT xid, id, created_at, {known}, timestamp, key, value, array_send(header_names),"
    " array_send(header_values) FROM {message} WHERE id >= (SELECT id FROM since) AND id <= (SELECT last FROM cut)"
    " AND id <> ALL (CAST(%(skip)s AS bigint[])) ORDER BY id"
)
_BEYOND: LiteralString = (
    "SELECT now, xid, started, back FROM (SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),"
    " (SELECT min(r.id) FROM unnest(CAST(%(low)s AS bigint[]), CAST(%(low_xids)s AS xid8[])) AS r (id, xid)"
    " WHERE EXISTS (SELECT FROM {left} AS l WHERE l.xid = r.xid AND l.ids @> r.id))) AS c (now, back)"
    " LEFT JOIN (SELECT DISTINCT xid::text::bigint AS xid, {started} AS started FROM {message}"
    " WHERE xid = ANY (CAST(%(xids)s AS xid8[])) AND id > %(last)s) AS beyond ON true"
)
_TRANSACTIONS: LiteralString = (
    "SELECT id, xid::text::bigint, {started} FROM {message} WHERE id = ANY (CAST(%(ids)s AS bigint[]))"
    " UNION ALL SELECT id, xid::text::bigint, {started} FROM {discarded} WHERE id = ANY (CAST(%(ids)s AS bigint[]))"
)
_MOVE: LiteralString = (
    "WITH named AS MATERIALIZED (SELECT unnest(ids) AS id, unnest(xids) AS xid, unnest(starts) AS started"
    " FROM {source} WHERE id = 0 AND %(settles)s),"
    " moved AS (UPDATE {source} SET batch = %(batch)s, nonce = CAST(%(nonce)s AS uuid), delivered = %(delivered)s,"
    " delivered_nonce = CAST(%(delivered_nonce)s AS uuid), ids = CAST(%(ids)s AS bigint[]),"
    " xids = CAST(%(xids)s AS xid8[]), starts = CAST(%(starts)s AS bigint[]), highest = greatest(highest, %(highest)s)"
    " WHERE id = 0 AND incarnation = CAST(%(incarnation)s AS uuid) AND nonce = CAST(%(expected)s AS uuid)"
    " AND %(named)s IN (0, cardinality(ids))"
    " RETURNING batch, (batch, nonce, delivered, delivered_nonce, ids, xids, starts) = (%(batch)s,"
    " CAST(%(nonce)s AS uuid), %(delivered)s, CAST(%(delivered_nonce)s AS uuid), CAST(%(ids)s AS bigint[]),"
    " CAST(%(xids)s AS xid8[]), CAST(%(starts)s AS bigint[])) AND highest >= %(highest)s AS is_set),"
    " gone AS (DELETE FROM {message} AS m USING moved, named AS r WHERE {same} RETURNING {deleted}), {evidence},"
    " refused AS (DELETE FROM {message} AS m USING moved, unnest(%(refused)s::bigint[], %(refused_xids)s::xid8[],"
    " %(refused_starts)s::bigint[], %(reasons)s::text[], %(details)s::text[]) AS r (id, xid, started, reason, detail)"
    " WHERE {same} RETURNING m.*, r.reason, r.detail),"
    " kept AS (INSERT INTO {discarded} (xid, id, created_at, service, topic, partition, timestamp, key, value,"
    " header_names, header_values, reason, detail) SELECT xid, id, created_at, {known},"
    " timestamp, key, value, header_names, header_values, reason, detail FROM refused ON CONFLICT DO NOTHING"
    " RETURNING 1), counted AS (SELECT (SELECT count(*) FROM gone) AS gone, (SELECT count(*) FROM named) AS named,"
    " recorded, (SELECT count(*) FROM refused) AS moved, cardinality(%(refused)s::bigint[]) AS refused,"
    " (SELECT count(*) FROM kept) AS kept FROM recorded) {counted}"
)
# By the database's clock, and oldest first: what is purged is known by one time.
_PURGE: LiteralString = (
    "WITH old AS (DELETE FROM {delivered} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {delivered} WHERE delivered_at"
    " < now() - %(keep_ms)s * interval '1 millisecond' ORDER BY delivered_at LIMIT %(rows)s)) RETURNING delivered_at),"
    " noted AS (UPDATE {source} SET purged_until = greatest(purged_until, (SELECT max(delivered_at) FROM old))"
    " WHERE id = 0 AND EXISTS (SELECT FROM old))"
    " SELECT count(*) FROM old"
)
_FIGURES: LiteralString = (
    "SELECT (SELECT extract(epoch FROM clock_timestamp() - created_at) FROM {message} WHERE id >= %(floor)s"
    " ORDER BY id LIMIT 1), (SELECT coalesce(max(id) - min(id) + 1, 0) FROM {message} WHERE id >= %(floor)s),"
    " (SELECT count(*) FROM (SELECT FROM {discarded} LIMIT 10000) AS found)"
)
# INSERT and COPY take this lock before they are given an id. Only prepared transactions have no pid.
_WRITERS: LiteralString = (
    "SELECT ARRAY(SELECT CASE WHEN l.pid IS NULL THEN 'prepared' ELSE l.virtualtransaction END"
    " FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    " WHERE d.datname = current_database() AND l.locktype = 'relation' AND l.granted"
    " AND l.mode = 'RowExclusiveLock' AND l.relation = CAST({quoted} AS regclass)"
    " AND l.pid IS DISTINCT FROM pg_backend_pid())"
)


_AS_NUMBERS = ("xid8", "timestamptz")
"""Types that the driver returns as Postgres has them: a number, and microseconds since 2000."""


class SourceTable(OwnedTable):
    """A message table, as its owner uses it."""

    def __init__(self, name: str, settings: TableSettings, connection: psycopg.Connection[Any]) -> None:
        table = MessageTable(settings.table_names())
        super().__init__(name, table.names, connection, table.places)
        self._table = table
        self._keep_ms = settings.keep_settled_ms
        self._floor = IdFloor(time.monotonic())
        self._highest = 0  # no higher id ever left the table
        self._ids_file: int | None = None  # of the sequence
        self._window = table.compose(_WINDOW)
        self._beyond = table.compose(_BEYOND)
        self._move = table.compose(_MOVE)

    def _explained(self) -> Any:
        return explained(self._names.schema, self._names.message, self._right())

    def check(self) -> None:
        names, role = self._names, str(self._connection.info.user)
        with self._explained():
            row = self._connection.execute(self._table.compose(PROGRESS)).fetchone()
        if row is not None:
            self._check_name(row[0])
        if lacks := missing_rights(self._connection, names.schema, self._table.relay_grant(role).rights):
            rights = ", ".join(f"{right} on {name}" for right, name in lacks)
            raise ConfigurationError(
                f"Role {role} may not {rights}. Run `outbox table create --relay-role {written(role)}`."
            )

    def progress(self) -> Progress:
        with self._explained():
            self._connection.execute(self._table.compose(_BEGIN), (self.name,))
            self._connection.execute(self._table.compose(_ARRIVED))
            row = self._connection.execute(self._table.compose(PROGRESS)).fetchone()
            found = self._connection.execute(self._table.compose(_HIGHEST)).fetchone()
        self._highest, self._ids_file = found or (0, None)
        name, *progress = row or (None,)
        self._check_name(name)
        return Progress.read(*progress)

    def _check_name(self, name: object) -> None:
        if name != self.name:
            raise ConfigurationError(
                f"Message table {self._table.full_name} is delivered as source {name!r}, not {self.name!r}. "
                f"Name it {name!r} in the setting tables of every relay."
            )

    def window(self, rows: int, size: int, skip: Sequence[int]) -> Window:
        self._look_at_writers()
        cursor = self._connection.cursor(binary=True)
        for type_ in _AS_NUMBERS:
            cursor.adapters.register_loader(type_, Int8BinaryLoader)
        parameters = {"rows": rows, "bytes": size, "skip": _array(skip), "floor": self._floor.id}
        parameters |= {"newest": max(self._highest, self._floor.newest), "ids_file": self._ids_file}
        try:
            with self._explained():
                read = cursor.execute(self._window, parameters, prepare=may_prepare(skip)).fetchall()
        except psycopg.errors.InvalidTextRepresentation as error:
            self.verify()
            raise ConfigurationError(f"The ids of {self.full_name} were set back. It is examined again.") from error
        found = cast("list[Row]", read)
        self._floor.saw([row[1] for row in found], skip, time.monotonic())
        failpoint("relay.table_read")
        if not found:
            return Window((), frozenset(), 0)
        return self._look_beyond(found)

    def _look_beyond(self, found: Sequence[Row]) -> Window:
        """Return the window of some rows, after a look at those that may have come back (R72)."""
        low = found[: bisect_right(found, self._highest, key=id_of)]
        parameters = {
            "xids": list(map(str, {row[0] for row in found})),
            "last": found[-1][1],
            "low": _array(row[1] for row in low),
            "low_xids": _array(row[0] for row in low),
        }
        beyond = self._connection.execute(self._beyond, parameters).fetchall()
        now, _, _, back = beyond[0]
        if back is not None:
            raise UnsafeError(
                f"Table source {self.name}, table {self._table.full_name}: row {back} waits, although the table of "
                f"delivered or of discarded messages has its xid and id: it has come back, as from a backup. {HALTED}"
            )
        return Window(found, frozenset((xid, us) for _, xid, us, _ in beyond if us is not None), now)

    def _look_at_writers(self) -> None:
        now = time.monotonic()
        if self._floor.is_due(now):
            (writers,) = self._connection.execute(self._table.compose(_WRITERS)).fetchone() or ((),)
            self._floor.look(writers, now)

    def transaction_ids(self, ids: Collection[str]) -> dict[str, set[str]]:
        """See `OwnedTable`. A discarded row may have the id of one that waits."""
        possible = [int(id_) for id_ in ids if is_bigint(id_)]
        found: defaultdict[str, set[str]] = defaultdict(set)
        for id_, xid, us in self._connection.execute(self._table.compose(_TRANSACTIONS), {"ids": _array(possible)}):
            found[str(id_)].add(table_transaction_id(xid, us))
        return found

    def move(
        self,
        before: Progress,
        after: Progress,
        ready: Sequence[Row] = (),
        refused: Sequence[Refusal] = (),
    ) -> Progress:
        """See `OwnedTable`. The same statement inserts the evidence of each row that it deletes (R61)."""
        self._highest = max([self._highest, *after.ids, *(refusal.id for refusal in refused)])
        rows = {
            "highest": self._highest,
            "ids": _array(after.ids),
            "xids": _array(row[0] for row in ready),
            "starts": _array(row[2] + EPOCH_US for row in ready),
            "refused_xids": _array(refusal.local[0] for refusal in refused),
            "refused_starts": _array(refusal.local[1] for refusal in refused),
            "proven": after.delivered,
        }
        return self._take(self._move, before, after, rows | refusals(refused, _array))

    def _purge(self) -> bool:
        parameters = {"keep_ms": self._keep_ms, "rows": PURGE_ROWS}
        row = self._connection.execute(self._table.compose(_PURGE), parameters).fetchone()
        return row == (PURGE_ROWS,)

    def _figures(self) -> TableFigures:
        """See `OwnedTable`. The number of rows that wait is about right."""
        row = self._connection.execute(self._table.compose(_FIGURES), {"floor": self._floor.id}).fetchone()
        oldest, count, discarded = row or (0, 0, 0)
        return TableFigures(float(oldest or 0), int(count), int(discarded))


def _array(ids: Iterable[int]) -> str:
    """Return ids as an array literal: psycopg takes ten times as long for a list."""
    return f"{{{','.join(map(str, ids))}}}"
