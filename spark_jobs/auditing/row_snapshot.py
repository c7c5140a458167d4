"""The callback rows of a window, out of Postgres: one snapshot for each database, in bounded memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import parquet

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connect_dsn, connection_problem, server_limits
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError
from spark_jobs.auditing.service_databases import Database
from spark_jobs.records.database_rows import COLUMNS
from spark_jobs.runtime.spans import Span

AT_ONCE = 50_000
"""Rows in memory."""

CONNECT_SECONDS = 5

IDLE_SECONDS = 60
"""How long the snapshot may be idle: rows are written to a file between two reads."""

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

# Rows of other half topics come too: they show that a record is of another channel. There are few, or none.
_ROWS = """
SELECT %(database)s::text, transaction_id::text, service, state::text, half_topic_id::text, half_partition,
       first_offset, last_offset, positions
  FROM {transaction}
 WHERE half_topic_id <> %(topic)s::uuid OR first_offset < 0 OR EXISTS (
       SELECT FROM unnest(%(partitions)s::int[], %(starts)s::bigint[], %(ends)s::bigint[])
                   AS span(number, begins, ends)
        WHERE number = half_partition AND last_offset >= begins AND first_offset < ends)
"""

_PURGED = "SELECT split_part(key, '/', 3), value FROM {meta} WHERE key LIKE 'purged/' || %(topic)s || '/%%'"
_PURGED_UNTIL = "SELECT max(value::bigint) FROM {meta} WHERE key = 'purged_until'"


def take_snapshot(
    connection: psycopg.Connection[Any],
    name: str,
    database: CheckerDatabase,
    half_topic_id: str,
    window: Mapping[int, Span],
    file: Path,
) -> Database:
    """Write the rows of a window to a Parquet file, and return the database's state in the same snapshot.

    Rows, incarnation and purge watermarks are of one moment: what was purged before it is below a watermark.
    """
    table = CallbackTable(database.table_names())
    table.verify(connection)
    topic = {"topic": half_topic_id}
    purged = connection.execute(table.compose(_PURGED), topic).fetchall()
    (until,) = connection.execute(table.compose(_PURGED_UNTIL)).fetchone() or (None,)
    parameters = {**topic, **_arrays(window), "database": name}
    write_rows(connection, table.compose(_ROWS), parameters, COLUMNS, file)
    watermarks = {int(partition): int(value) for partition, value in purged}
    return Database(name, database.services, table.incarnation(connection) or "", watermarks, until)


@contextmanager
def open_snapshot(name: str, database: CheckerDatabase) -> Iterator[psycopg.Connection[Any]]:
    """Connect to a database's primary, and read one snapshot of it in the block."""
    dsn = database.connection_string()
    try:
        with connect_dsn(
            dsn,
            connect_timeout=CONNECT_SECONDS,
            application_name="outbox-audit",
            target_session_attrs="primary",  # a replica may not have the row yet whose message is visible already
            options=f"-c search_path=pg_catalog {server_limits(IDLE_SECONDS)}",
            tcp_user_timeout=10_000,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
        ) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield connection
    except psycopg.Error as error:
        raise ConfigurationError(f"Database {name!r} cannot be read: {connection_problem(error, dsn)}") from error


def write_rows(
    connection: psycopg.Connection[Any],
    query: str,
    parameters: Mapping[str, Any],
    columns: str,
    file: Path,
) -> None:
    """Write what a query returns to a Parquet file.

    Args:
        columns: Their names and types, as Spark reads them.
    """
    schema = pa.schema([(name, _TYPES[type_]) for name, type_ in map(str.split, columns.split(","))])
    with connection.cursor(name="outbox_audit") as cursor, parquet.ParquetWriter(file, schema) as writer:
        cursor.execute(query, parameters)
        while rows := cursor.fetchmany(AT_ONCE):
            writer.write_table(pa.table([*map(list, zip(*rows, strict=True))], schema=schema))


def _arrays(window: Mapping[int, Span]) -> dict[str, list[int]]:
    return {
        "partitions": list(window),
        "starts": [start for start, _ in window.values()],
        "ends": [end for _, end in window.values()],
    }
