"""The tables of table mode, out of Postgres: how far they are delivered, and their rows of a window, without content.

The progress is read before the ends of the real topics are taken, the rows after them. So each record that is visible
by then has a row or evidence, and the record of each message that was delivered by then is below these ends.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from pyarrow import compute, parquet

from outbox._postgres.ddl import identifier
from outbox._postgres.message_table import MessageTable
from outbox.errors import ConfigurationError
from spark_jobs.auditing.row_snapshot import write_rows
from spark_jobs.auditing.service_databases import MessageTables
from spark_jobs.auditing.window import TableProgress, Window
from spark_jobs.records.database_rows import TABLE_COLUMNS

_INCOMPLETE = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
)

_EXISTS = "SELECT to_regclass(%s) IS NOT NULL"
_PROGRESS: LiteralString = "SELECT name, incarnation::text, delivered FROM {source} WHERE id = 0"
_STATE: LiteralString = (
    "SELECT (SELECT incarnation::text FROM {source} WHERE id = 0),"
    " CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint),"
    " (SELECT CAST(extract(epoch FROM purged_until) * 1000 AS bigint) FROM {source} WHERE id = 0)"
)
_IN_WINDOW: LiteralString = (
    "WHERE created_at >= timestamptz 'epoch' + %(start)s * interval '1 millisecond'"
    " AND created_at < timestamptz 'epoch' + %(end)s * interval '1 millisecond'"
)
_DELIVERED: LiteralString = (  # a row for each local transaction and target
    "SELECT delivered_at, batch, xid, created_at, services[place] AS service, topics[place] AS topic,"
    " partitions[place] AS partition, earliest[place] AS earliest, range_agg(int8range(r.id, r.id, '[]')) AS ids"
    " FROM {delivered} AS b, {rows}, coalesce(target, 1) AS place WHERE r.id IS NOT NULL"
    " GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"
)
_TOPIC: LiteralString = "SELECT left(topic, 249), least(%(start)s, "  # a topic may keep the timestamps that users gave
_TOPICS: LiteralString = (
    f"{_TOPIC} min(earliest)) FROM ({_DELIVERED}) AS evidence {_IN_WINDOW} GROUP BY topic"
    f" UNION ALL {_TOPIC} min(timestamp)) FROM {{message}} {_IN_WINDOW} GROUP BY topic"
    f" UNION ALL {_TOPIC} min(timestamp)) FROM {{discarded}} {_IN_WINDOW} GROUP BY topic"
)
_ABOUT: LiteralString = "SELECT %(source)s::text, {transaction_id}::text, created_at"
_ROWS: LiteralString = (
    f"{_ABOUT}, delivered_at, service, topic, partition, lower(run), upper(run) - 1, NULL, batch <= %(settled)s"
    f" FROM ({_DELIVERED}) AS evidence, unnest(ids) AS run {_IN_WINDOW}"
    f" UNION ALL {_ABOUT}, NULL, {{known}}, id, id, NULL, false"
    f" FROM {{message}} {_IN_WINDOW}"
    f" UNION ALL {_ABOUT}, NULL, service, topic, partition, id, id, reason, true"
    f" FROM {{discarded}} {_IN_WINDOW}"
)


def read_progress(
    connection: psycopg.Connection[Any], table: MessageTable, window: Window
) -> tuple[TableProgress, list[tuple[str, int]]] | None:
    """Return how far a message table is delivered, and the real topics of its rows, each with its earliest time.

    Returns:
        None if the database has no message table.
    """
    if not _exists(connection, table):
        return None
    with _explained(table):
        row = connection.execute(table.compose(_PROGRESS)).fetchone()
        topics = connection.execute(table.compose(_TOPICS), _limits(window)).fetchall()
    return TableProgress(*(row or ("", "", 0))), topics


def write_table_rows(
    connection: psycopg.Connection[Any], table: MessageTable, window: Window, progress: TableProgress, file: Path
) -> MessageTables:
    """Write the rows of a window to a Parquet file, and return the tables' state in the same snapshot.

    Args:
        progress: How far it was delivered before the ends of the real topics were taken.
    """
    with _explained(table):
        incarnation, now, purged_until = connection.execute(table.compose(_STATE)).fetchone() or ("", 0, None)
        settled = progress.delivered if incarnation == progress.incarnation else -1
        parameters = {**_limits(window), "source": progress.source, "settled": settled}
        write_rows(connection, table.compose(_ROWS), parameters, TABLE_COLUMNS, file)
    runs = parquet.read_table(file, columns=["first", "last"])
    messages = runs.num_rows + (compute.sum(compute.subtract(runs["last"], runs["first"])).as_py() or 0)
    return MessageTables(progress.source, now, purged_until, messages)


def _exists(connection: psycopg.Connection[Any], table: MessageTable) -> bool:
    name = identifier(table.names.schema, table.names.message)
    return connection.execute(_EXISTS, (name,)).fetchone() == (True,)


def _limits(window: Window) -> Mapping[str, int]:
    return {"start": window.start, "end": window.end}


@contextmanager
def _explained(table: MessageTable) -> Iterator[None]:
    try:
        yield
    except _INCOMPLETE as error:
        raise ConfigurationError(
            f"The tables of table mode beside {table.full_name} cannot be read ({error.diag.message_primary}). Let "
            "their owner run `outbox table create --checker-role ROLE` with the role of this connection."
        ) from error
