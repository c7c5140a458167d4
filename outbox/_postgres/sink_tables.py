"""The tables of the sink for Spark: what tasks have staged, and the last batch of each query (R86).

A task copies its rows under an attempt of its own. The driver moves those of a batch into the message table, in the
transaction that counts the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import LiteralString

from outbox._postgres.ddl import Grant, Tables, identifier, split
from outbox._postgres.message_table import INSERT_RIGHT
from outbox._postgres.table_contract import Places, Table
from outbox.settings import TableNames

ATTEMPT = "outbox.attempt"
"""The setting of a task's session from which its rows have their attempt."""

_COLUMNS: LiteralString = "service, topic, partition, timestamp, key, value, header_names, header_values"

_DDL: LiteralString = """
CREATE TABLE IF NOT EXISTS {staged} (
    attempt uuid NOT NULL DEFAULT CAST(current_setting('outbox.attempt') AS uuid),
    id bigint GENERATED ALWAYS AS IDENTITY,
    staged_at timestamptz NOT NULL DEFAULT now(),
    service text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    timestamp bigint,
    key bytea,
    value bytea,
    header_names text[],
    header_values bytea[],
    part bytea,
    PRIMARY KEY (attempt, id)
);
COMMENT ON TABLE {staged} IS 'Rows of the tasks of Spark whose batch is not committed.';
CREATE INDEX IF NOT EXISTS {index} ON {staged} (staged_at);
CREATE TABLE IF NOT EXISTS {batch} (
    query text PRIMARY KEY,
    checkpoint text NOT NULL,
    batch bigint NOT NULL,
    rows bigint NOT NULL,
    checksum bigint NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {batch} IS 'The last batch that each query of Spark has committed.';
"""

BEGIN: LiteralString = (
    "INSERT INTO {batch} (query, checkpoint, batch, rows, checksum)"
    " VALUES (%(query)s, %(checkpoint)s, CAST(%(batch)s AS bigint) - 1, 0, 0) ON CONFLICT (query) DO NOTHING"
)
KNOWN: LiteralString = "SELECT checkpoint, batch, rows, checksum FROM {batch} WHERE query = %(query)s FOR UPDATE"
MOVE: LiteralString = (
    "WITH gone AS (DELETE FROM {staged} AS s USING unnest(CAST(%(attempts)s AS uuid[])) WITH ORDINALITY"
    " AS given (attempt, task) WHERE s.attempt = given.attempt RETURNING s.*, task),"
    " placed AS (SELECT *, min(ARRAY[task, id]) OVER (PARTITION BY part) AS first FROM gone),"
    " moved AS (INSERT INTO {message} ({columns}, created_at) SELECT {columns}, now() + interval '1 microsecond'"
    " * (dense_rank() OVER (ORDER BY first) - 1) FROM placed ORDER BY first, task, id RETURNING 1)"
    " SELECT task, count(*) FROM gone GROUP BY task UNION ALL SELECT 0, count(*) FROM moved"
)
"""Returns how many rows each task had staged, by its number from 1, and how many came into the message table, by 0.

A local transaction is named by its xid and its start. So each part of a batch gets a start of its own, and its rows
follow each other: the relay counts and delivers it as a transaction, while the batch still commits as one.
"""
END: LiteralString = (
    "UPDATE {batch} SET batch = %(batch)s, rows = %(rows)s, checksum = %(checksum)s, committed_at = now()"
    " WHERE query = %(query)s"
)
DISCARD: LiteralString = "DELETE FROM {staged} WHERE attempt = ANY (CAST(%(attempts)s AS uuid[]))"
CLEAN: LiteralString = "DELETE FROM {staged} WHERE staged_at < now() - interval '7 days'"
"""Removes what killed tasks and drivers have left."""


class SinkTables(Tables):
    """DDL and rights of both tables."""

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self._names = {
            "staged": identifier(names.schema, names.staged),
            "batch": identifier(names.schema, names.sink),
            "message": identifier(names.schema, names.message),
            "index": identifier(f"{names.staged}_at"),
            "columns": _COLUMNS,
        }

    @property
    def places(self) -> Places:
        schema = self.names.schema
        return {Table.STAGED: (schema, self.names.staged), Table.SINK: (schema, self.names.sink)}

    def statements(self) -> list[str]:
        """Return the statements that make both tables; running them again is safe."""
        return [*map(self.compose, split(_DDL))]

    def executor_grant(self, role: str) -> Grant:
        """Return what tasks need. They can neither read nor delete rows, or publish any."""
        return Grant(self.names.schema, role, {self.names.staged: (INSERT_RIGHT, "INSERT (part)")})

    def driver_grant(self, role: str) -> Grant:
        """Return what the driver needs. It cannot read messages."""
        names = self.names
        rights = {names.staged: ("SELECT", "DELETE"), names.sink: ("SELECT", "INSERT", "UPDATE")}
        return Grant(names.schema, role, {**rights, names.message: (INSERT_RIGHT, "INSERT (created_at)")})

    def grants(self, executors: Iterable[str], drivers: Iterable[str]) -> list[Grant]:
        return [*map(self.executor_grant, executors), *map(self.driver_grant, drivers)]
