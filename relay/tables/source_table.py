"""The SQL of a message table: windows of committed rows, and the one statement that moves the progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from outbox._failpoints import failpoint
from outbox._postgres.message_table import MessageTable
from outbox.errors import ConfigurationError
from relay.tables.owned_table import OwnedTable, Step, Window
from relay.tables.rows import Row
from relay.tables.table_progress import Progress

_BEGIN: LiteralString = "INSERT INTO {source} (id, name) VALUES (0, %s) ON CONFLICT (id) DO NOTHING"
_PROGRESS: LiteralString = "SELECT name, incarnation::text, batch, delivered, ids FROM {source} WHERE id = 0"

# A row takes about 300 bytes beside key and value.
_WINDOW: LiteralString = (
    "WITH head AS MATERIALIZED (SELECT id, coalesce(octet_length(value), 0) + coalesce(octet_length(key), 0)"
    " + 300 AS size FROM {message} WHERE id <> ALL (CAST(%(skip)s AS bigint[])) ORDER BY id LIMIT %(rows)s),"
    " sums AS (SELECT id, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS total FROM head),"
    " cut AS MATERIALIZED (SELECT coalesce(max(id) FILTER (WHERE total <= %(bytes)s), min(id)) AS last FROM sums)"
    " SELECT xid::text::bigint, id, {started}, producer_group, topic, partition, timestamp, key, value, header_names,"
    " header_values FROM {message} WHERE id <= (SELECT last FROM cut) AND id <> ALL (CAST(%(skip)s AS bigint[]))"
    " ORDER BY id"
)
_BEYOND: LiteralString = (
    "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint), ARRAY(SELECT DISTINCT xid::text::bigint"
    " FROM {message} WHERE xid = ANY (CAST(%(xids)s AS xid8[])) AND id > %(last)s)"
)
_MOVE: LiteralString = (
    "WITH moved AS (UPDATE {source} SET batch = %(batch)s, delivered = %(delivered)s, ids = CAST(%(ids)s AS bigint[])"
    " WHERE id = 0 AND incarnation = CAST(%(incarnation)s AS uuid) AND batch = %(expected)s RETURNING batch),"
    " gone AS (DELETE FROM {message} USING moved WHERE {message}.id = ANY (CAST(%(gone)s AS bigint[]))),"
    " refused AS (DELETE FROM {message} AS m USING moved, unnest(%(refused)s::bigint[], %(reasons)s::text[],"
    " %(details)s::text[]) AS r (id, reason, detail) WHERE m.id = r.id RETURNING m.*, r.reason, r.detail),"
    " kept AS (INSERT INTO {discarded} SELECT * FROM refused)"
    " SELECT batch FROM moved"
)
_FIGURES: LiteralString = (
    "SELECT (SELECT extract(epoch FROM clock_timestamp() - created_at) FROM {message} ORDER BY id LIMIT 1),"
    " (SELECT coalesce(max(id) - min(id) + 1, 0) FROM {message})"
)


class SourceTable(OwnedTable):
    """A message table, as its owner uses it.

    Args:
        name: Name of the source.
        table: The table.
        connection: In autocommit.
    """

    def __init__(self, name: str, table: MessageTable, connection: psycopg.Connection[Any]) -> None:
        super().__init__(name, table.names, connection)
        self._table = table
        self._window = table.compose(_WINDOW)
        self._beyond = table.compose(_BEYOND)
        self._move = table.compose(_MOVE)

    def progress(self) -> Progress:
        """Return the progress; a new source begins with batch 0.

        Raises:
            ConfigurationError: The table belongs to a source of another name.
            psycopg.Error: The database does not answer.
        """
        with self._explained():
            self._connection.execute(self._table.compose(_BEGIN), (self._name,))
            row = self._connection.execute(self._table.compose(_PROGRESS)).fetchone()
        name, incarnation, batch, delivered, ids = row or (None, "", 0, 0, ())
        if name != self._name:
            raise ConfigurationError(
                f"Message table {self._table.full_name} is delivered as source {name!r}, not {self._name!r}. "
                f"Name it {name!r} in the setting tables of every relay."
            )
        return Progress(incarnation, batch, delivered, tuple(ids))

    def window(self, rows: int, size: int, skip: Sequence[int]) -> Window:
        """Return the first committed rows.

        Args:
            rows: How many at most.
            size: Their bytes at most; one row is returned in any case.
            skip: Ids to leave out, at most 100,000 or so.

        Raises:
            psycopg.Error: The database does not answer.
        """
        parameters = {"rows": rows, "bytes": size, "skip": _array(skip)}
        cursor = self._connection.cursor(binary=True)
        found = [Row(*row) for row in cursor.execute(self._window, parameters)]
        failpoint("relay.table_read")
        if not found:
            return Window((), frozenset(), 0)
        parameters = {"xids": sorted({str(row.xid) for row in found}), "last": found[-1].id}
        now, beyond = self._connection.execute(self._beyond, parameters).fetchone() or (0, ())
        return Window(found, frozenset(beyond), now)

    def move(self, before: Progress, step: Step) -> Progress:
        """Take a step in one durable transaction: delete what was delivered, name the next batch.

        Args:
            before: The progress so far.
            step: The step.

        Raises:
            UnsafeError: Another process changed the progress. Nothing was written.
            psycopg.Error: The database does not answer.
        """
        parameters = {
            "incarnation": before.incarnation,
            "expected": before.batch,
            "batch": step.batch,
            "delivered": step.delivered,
            "ids": _array(step.ids),
            "gone": _array(step.gone),
            "refused": [refusal.id for refusal in step.refused],
            "reasons": [refusal.reason for refusal in step.refused],
            "details": [refusal.detail for refusal in step.refused],
        }
        return self._take(self._move, parameters, before, step)

    def figures(self) -> tuple[float, int]:
        """Return the age of the oldest row (s), and about how many rows there are."""
        row = self._connection.execute(self._table.compose(_FIGURES)).fetchone()
        oldest, count = row or (0, 0)
        return float(oldest or 0), int(count)


def _array(ids: Sequence[int]) -> str:
    """Return ids as an array literal: psycopg takes ten times as long for a list."""
    return f"{{{','.join(map(str, ids))}}}"
