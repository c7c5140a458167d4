"""The SQL of a message table: windows of committed rows, and the one statement that moves its progress (R61)."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, LiteralString, cast

import psycopg

from outbox._failpoints import failpoint
from outbox._postgres.ddl import missing_rights, written
from outbox._postgres.dsn import query_problem
from outbox._postgres.message_table import MessageTable
from outbox._postgres.number_arrays import Xids, listed, register
from outbox._postgres.source_statements import PROGRESS
from outbox._postgres.table_errors import explained
from outbox._rules.source_progress import Progress
from outbox._service.exit_codes import UnsafeError
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError, TableError
from outbox.protocol.identifiers import table_transaction_id
from relay.table.named_rows import columns
from relay.table.owned_table import HALTED, OwnedTable, Window, is_id, refusals
from relay.table.read_cursor import ReadCursor
from relay.table.row_transactions import Refused
from relay.table.rows import EPOCH_US, Local, Row, id_of

WAKE_ROWS = 1_000
"""Messages whose time has come that one statement looks at, and moves with the rest of their parts."""

WAKE_BEYOND = 64_000
"""Messages that it looks at while others cancel all that it finds."""

PURGE_ROWS = 100
"""Rows of evidence that one statement purges, each of a batch."""

BELOW_SECONDS = 60.0
"""Pause between two looks for rows that were passed: their ids must not be chosen, but an operator can do so."""

_BEGIN: LiteralString = "INSERT INTO {source} (id, name) VALUES (0, %s) ON CONFLICT (id) DO NOTHING"
# Another server has its own xids: there no evidence proves nothing about a transaction from before (R74).
_ARRIVED: LiteralString = (
    "UPDATE {source} SET server = here, purged_until = CASE WHEN server IS NULL THEN purged_until ELSE now() END"
    " FROM (SELECT system_identifier FROM pg_control_system()) AS this (here)"
    " WHERE id = 0 AND server IS DISTINCT FROM here"
)
_HIGHEST: LiteralString = (
    "SELECT highest, erasures, (SELECT pg_relation_filenode(tableoid) FROM {sequence}) FROM {source} WHERE id = 0"
)

# RESTART gives a sequence another file. The statement fails where ids were set back: the order of the rows is not that
# of their ids any more (R72). Without `+ 0` Postgres could walk through all rows up to the last one. The limit of bytes
# cuts behind the first row that does not fit. Of a row that is beyond the bounds of a message nothing is read but what
# identifies it (R68). OFFSET: only what is in the window is looked at. The first row of the result is about the
# statement.
_WINDOW: LiteralString = (
    "WITH forward AS MATERIALIZED (SELECT CAST(CASE WHEN last_value - CAST(NOT is_called AS integer) < %(newest)s"
    " OR pg_relation_filenode(tableoid) <> CAST(%(ids_file)s AS oid) THEN 'ids were set back'"
    " ELSE %(last)s::text END AS bigint) AS last FROM {sequence})"
    " SELECT NULL, NULL, clock_timestamp(), pg_current_snapshot()::text, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
    " UNION ALL SELECT xid, id, {start}, coalesce(CASE WHEN is_bounded THEN service ELSE left(service, 200) END, ''),"
    " coalesce(CASE WHEN is_bounded THEN topic ELSE left(topic, 249) END, ''),"
    " CASE WHEN is_bounded THEN coalesce(partition, -1) END, timestamp, CASE WHEN is_bounded THEN key END,"
    " CASE WHEN is_bounded AND (total <= %(bytes)s OR total = size) THEN value END,"
    " CASE WHEN is_bounded THEN array_send(header_names) END, CASE WHEN is_bounded THEN array_send(header_values) END,"
    " total FROM (SELECT *, {bounded} AS is_bounded FROM"
    " (SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS total FROM (SELECT *, {bytes} AS size FROM"
    " ((SELECT {row} FROM {message} WHERE id > (SELECT last FROM forward) ORDER BY id LIMIT %(rows)s)"
    " UNION ALL (SELECT {row} FROM {message} WHERE xid = ANY (CAST(%(open)s AS xid8[])) AND id + 0 <= %(last)s"
    " ORDER BY id LIMIT %(rows)s)"
    " UNION ALL (SELECT {row} FROM {message} WHERE xid >= CAST(%(xmax)s AS xid8)"
    " AND xid < pg_snapshot_xmax(pg_current_snapshot()) AND id + 0 <= %(last)s ORDER BY id LIMIT %(rows)s)"
    " ORDER BY id LIMIT %(rows)s) AS found) AS sized) AS summed WHERE total - size < %(bytes)s OFFSET 0)"
    " AS judged"
)
_LOW: LiteralString = (
    "SELECT min(m.id) FROM unnest(CAST(%(ids)s AS bigint[]), CAST(%(xids)s AS xid8[])) AS m (id, xid)"
    " WHERE EXISTS {left}"
)
_BEYOND: LiteralString = (
    "SELECT DISTINCT xid::text::bigint, {started} FROM {message}"
    " WHERE xid = ANY (CAST(%(xids)s AS xid8[])) AND id > %(last)s"
)
_BELOW: LiteralString = "SELECT count(*) FROM {message} WHERE id <= %(last)s"
_TRANSACTIONS: LiteralString = (
    "SELECT id, xid::text::bigint, {started} FROM {message} WHERE id = ANY (CAST(%(ids)s AS bigint[]))"
    " UNION ALL SELECT id, xid::text::bigint, {started} FROM {discarded} WHERE id = ANY (CAST(%(ids)s AS bigint[]))"
)
_MOVE: LiteralString = (
    "WITH settled AS MATERIALIZED (SELECT lower(ids) AS first_id, ids, xids || '{{}}' AS xids,"
    " starts || '{{}}' AS starts, xid_range, targets, services, topics, partitions, earliest FROM {source}"
    " WHERE id = 0 AND %(settles)s),"
    " moved AS (UPDATE {source} SET batch = %(batch)s, nonce = CAST(%(nonce)s AS uuid), delivered = %(delivered)s,"
    " delivered_nonce = CAST(%(delivered_nonce)s AS uuid), highest = greatest(highest, %(highest)s),"
    " ({batch}) = {named}"
    " WHERE id = 0 AND incarnation = CAST(%(incarnation)s AS uuid) AND nonce = CAST(%(expected)s AS uuid)"
    " AND erasures = %(erasures)s AND %(named)s IN (0, cardinality(xids))"
    " RETURNING batch, (batch, nonce, delivered, delivered_nonce) = (%(batch)s, CAST(%(nonce)s AS uuid),"
    " %(delivered)s, CAST(%(delivered_nonce)s AS uuid)) AND ({batch}) = {named}"
    " AND highest >= %(highest)s AS is_set),"
    " {gone}, {evidence},"
    " refused AS (DELETE FROM {message} AS m USING moved, unnest(%(refused)s::bigint[], %(refused_xids)s::xid8[],"
    " %(refused_starts)s::bigint[], %(reasons)s::text[], %(details)s::text[]) AS r (id, xid, started, reason, detail)"
    " WHERE {same} RETURNING {m_row}, r.reason, r.detail),"
    " kept AS (INSERT INTO {discarded} (xid, id, created_at, service, topic, partition, timestamp, key, value,"
    " header_names, header_values, reason, detail) SELECT xid, id, {start}, {known},"
    " timestamp, key, value, header_names, header_values, reason, detail FROM refused ON CONFLICT DO NOTHING"
    " RETURNING 1), counted AS (SELECT (SELECT count(*) FROM gone) AS gone,"
    " (SELECT coalesce(sum(high - low), 0) FROM runs) AS named,"
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
# A part is what a local transaction has of one time. It moves whole, or waits while another transaction cancels some of
# it. In the message table it is a transaction of its own, by its start: what is wrong with one concerns no other.
_WAKE: LiteralString = (
    "WITH first AS MATERIALIZED (SELECT not_before, xid, created_at FROM {scheduled} WHERE not_before <= now()"
    " ORDER BY not_before, id DESC LIMIT %(rows)s),"
    " due AS MATERIALIZED (SELECT unnest(ids) AS id FROM (SELECT DISTINCT * FROM first) AS part, LATERAL"
    " (SELECT array_agg(id) AS ids FROM (SELECT id FROM {scheduled} AS s WHERE s.not_before = part.not_before"
    " AND s.xid = part.xid AND s.created_at = part.created_at FOR UPDATE SKIP LOCKED) AS mine) AS locked"
    " WHERE cardinality(ids) = (SELECT count(*) FROM {scheduled} AS s WHERE s.not_before = part.not_before"
    " AND s.xid = part.xid AND s.created_at = part.created_at)),"
    " gone AS (DELETE FROM {scheduled} AS s USING due WHERE s.id = due.id RETURNING {s_row}, s.not_before),"
    " made AS (INSERT INTO {message} (created_at, service, topic, partition, timestamp, key, value, header_names,"
    " header_values) SELECT now() + dense_rank() OVER (ORDER BY not_before, xid, created_at)"
    " * interval '1 microsecond', service, topic, partition, timestamp, key, value, header_names, header_values"
    " FROM gone ORDER BY not_before, id DESC RETURNING 1), counted AS (SELECT (SELECT count(*) FROM due) AS due,"
    " (SELECT count(*) FROM gone) AS gone, (SELECT count(*) FROM made) AS made)"
    " SELECT CAST(CASE WHEN due = gone AND gone = made THEN due::text ELSE"
    " concat_ws(' ', 'a trigger changes rows that wait for their time:', due, gone, made) END AS bigint),"
    " (SELECT count(*) FROM first) FROM counted"
)
_FIGURES: LiteralString = (
    "SELECT greatest((SELECT {age} FROM {message} WHERE id >= %(first)s ORDER BY id LIMIT 1),"
    " (SELECT extract(epoch FROM clock_timestamp() - min(not_before)) FROM {scheduled} WHERE not_before < now())),"
    " (SELECT coalesce(max(id) - min(id) + 1, 0) FROM {message} WHERE id >= %(first)s)"
)


class SourceTable(OwnedTable):
    """A message table, as its owner uses it."""

    def __init__(self, name: str, settings: TableSettings, connection: psycopg.Connection[Any]) -> None:
        table = MessageTable(settings.table_names())
        super().__init__(name, settings, connection, table.places)
        self._table = table
        self._keep_ms = settings.keep_settled_ms
        self._cursor = ReadCursor()
        self._below_at = time.monotonic() + BELOW_SECONDS
        self._wake_rows = WAKE_ROWS
        self._highest = 0  # no higher id ever left the table
        self._erasures = 0
        self._ids_file: int | None = None  # of the sequence
        self._window = table.compose(_WINDOW)
        self._move = table.compose(_MOVE)
        register(connection)

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
        self._highest, self._erasures, self._ids_file = found or (0, 0, None)
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
        self._look_below(skip)
        place = self._cursor.place
        parameters = {"rows": rows, "bytes": size, **place._asdict(), "open": f"{{{','.join(place.open)}}}"}
        parameters |= {"newest": max(self._highest, self._cursor.highest), "ids_file": self._ids_file}
        cursor = self._connection.cursor(binary=True)
        try:
            with self._explained():
                (about, *found) = cursor.execute(self._window, parameters, prepare=True).fetchall()
        except psycopg.errors.InvalidTextRepresentation as error:
            self.verify()
            raise ConfigurationError(f"The ids of {self.full_name} were set back. It is examined again.") from error
        except (psycopg.DataError, psycopg.errors.InternalError_, psycopg.errors.DataCorrupted) as error:  # a row
            raise TableError(
                f"A row of {self.full_name} cannot be read, one of the first {rows} with an id above {place.last}: "
                f"{query_problem(error)}. If that lasts, repair the row; to delete it loses its message."
            ) from error
        failpoint("relay.table_read")
        is_cut = len(found) == rows or (bool(found) and found[-1][11] >= size)
        if len(found) > 1 and found[-1][11] > size:
            found.pop()
        beyond = self._beyond(found) if is_cut else frozenset()
        kept = self._cursor.saw(cast("list[Row]", found), about[3], skip, is_cut=is_cut)
        self._require_new(kept)
        return Window(kept, beyond, (about[2] + EPOCH_US) // 1_000, is_cut)

    def _beyond(self, found: Sequence[Any]) -> frozenset[Local]:
        """Return the local transactions of some rows that go on behind the last one."""
        parameters = {"xids": Xids({row[0] for row in found}), "last": found[-1][1]}
        return frozenset(self._connection.execute(self._table.compose(_BEYOND), parameters).fetchall())

    def _require_new(self, found: Sequence[Row]) -> None:
        """Halt if a row has come back (R72)."""
        low = found[: bisect_right(found, self._highest, key=id_of)]
        if not low:
            return
        parameters = {"ids": listed(row[1] for row in low), "xids": Xids(row[0] for row in low)}
        ((back,),) = self._connection.execute(self._table.compose(_LOW), parameters).fetchall()
        if back is not None:
            raise UnsafeError(
                f"Table source {self.name}, table {self._table.full_name}: row {back} waits, although the table of "
                f"delivered or of discarded messages has its xid and id: it has come back, as from a backup. {HALTED}"
            )

    def _look_below(self, known: Collection[int]) -> None:
        """Read from the lowest id once more if there are rows that were passed: an operator may have inserted them."""
        if time.monotonic() < self._below_at:
            return
        self._below_at, last = time.monotonic() + BELOW_SECONDS, self._cursor.place.last
        ((count,),) = self._connection.execute(self._table.compose(_BELOW), {"last": last}).fetchall()
        if count != sum(id_ <= last for id_ in known):
            self._cursor.read_again(1)

    def take(self, window: Window, taken: int) -> None:
        self._cursor.take(window.rows, taken)

    def read_again(self, first: int) -> None:
        self._cursor.read_again(first)

    def transaction_ids(self, ids: Collection[str]) -> dict[str, set[str]]:
        """See `OwnedTable`. A discarded row may have the id of one that waits."""
        possible = [int(id_) for id_ in ids if is_id(id_, "bigint[]")]
        found: defaultdict[str, set[str]] = defaultdict(set)
        for id_, xid, us in self._connection.execute(self._table.compose(_TRANSACTIONS), {"ids": listed(possible)}):
            found[str(id_)].add(table_transaction_id(xid, us))
        return found

    def move(self, before: Progress, after: Progress, ready: Sequence[Row] = (), refused: Refused = ()) -> Progress:
        """See `OwnedTable`. The same statement inserts the evidence of each row that it deletes (R61)."""
        self._highest = max([self._highest, *after.ids, *(id_ for gone, _ in refused for id_ in gone.ids())])
        rows = {"highest": self._highest, "erasures": self._erasures, **columns(ready), "proven": after.delivered}
        try:
            return self._take(self._move, before, after, rows | refusals(refused, listed))
        except UnsafeError:  # an operator who erases rows counts that
            found = self._connection.execute(self._table.compose(_HIGHEST)).fetchone()
            if found is None or found[1] == self._erasures:
                raise
        raise ConfigurationError(f"Rows of {self.full_name} were erased. What was read of it is read again.")

    def _purge(self) -> bool:
        parameters = {"keep_ms": self._keep_ms, "rows": PURGE_ROWS}
        return self._connection.execute(self._table.compose(_PURGE), parameters).fetchone() == (PURGE_ROWS,)

    def _wake(self) -> bool:
        rows = self._wake_rows
        self._wake_rows = max(rows // 2, 1)  # if it fails: they may be very large
        row = self._connection.execute(self._table.compose(_WAKE), {"rows": rows}).fetchone()
        moved, found = row or (0, 0)
        self._wake_rows = min(2 * rows, WAKE_ROWS if moved else WAKE_BEYOND)
        failpoint("relay.table_woken")
        return bool(found == rows and (moved or rows < WAKE_BEYOND))

    def _figures(self) -> tuple[float, int]:
        """See `OwnedTable`. The number of rows that wait is about right."""
        row = self._connection.execute(self._table.compose(_FIGURES), {"first": self._cursor.first}).fetchone()
        oldest, count = row or (0, 0)
        return float(oldest or 0), int(count)
