"""What is found of the message tables that the setting `tables` names, and of one that it does not name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, LiteralString, Protocol

import psycopg

from outbox._operations.finding import Finding
from outbox._operations.foreign_doctor import examine_foreign
from outbox._operations.source_report import SourceReporter
from outbox._operations.table_doctor import TableDoctor
from outbox._operations.table_view import TableView
from outbox._postgres.ddl import may_use_schema
from outbox._postgres.dsn import database_name
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import source_name
from outbox._rules.qualified_name import QualifiedName
from outbox.protocol.names import Channel
from outbox.settings import TableNames

_READABLE: LiteralString = (
    "SELECT coalesce(has_column_privilege(to_regclass(%s), 'created_at', 'SELECT'), false)"
    " AND to_regclass(%s) IS NOT NULL"
)
_OLDEST: LiteralString = (
    "SELECT CAST(extract(epoch FROM clock_timestamp() - created_at) AS integer) FROM {message} ORDER BY id LIMIT 1"
)


class SourceSettings(Protocol):
    """Settings of a table source."""

    @property
    def is_foreign(self) -> bool:
        """Whether its table is a foreign table."""

    def names(self) -> TableNames:
        """Return where its tables are."""

    def foreign_name(self) -> QualifiedName:
        """Return schema and name of the foreign table."""

    def connection_string(self) -> str:
        """Return the connection string of its database."""


def examine_sources(
    tables: Mapping[str, SourceSettings], kafka: Mapping[str, str], channel: Channel, *, is_silent: bool
) -> Iterator[Finding]:
    """Yield what is found of the table sources, each in its database and in Kafka.

    Args:
        is_silent: Whether Kafka did not answer, so that it is not asked again.
    """
    reporter = SourceReporter(kafka, channel, is_unreachable=is_silent)
    for source, table in tables.items():
        if table.is_foreign:
            foreign = ForeignSource(table.names(), table.foreign_name())
            yield from examine_foreign(source, foreign, table.connection_string(), reporter)
        else:
            yield from TableDoctor(source, table.names(), table.connection_string()).examine(kafka, channel, reporter)


Place = tuple[str, str, str]
"""Database, schema and name of a message table."""


def named_places(tables: Mapping[str, SourceSettings]) -> set[Place]:
    """Return the message tables that the setting `tables` names."""
    return {
        (database_name(table.connection_string()), table.names().schema, table.names().message)
        for table in tables.values()
        if not table.is_foreign
    }


def examine_unnamed(
    connection: psycopg.Connection[Any], names: TableNames, named: Collection[Place]
) -> Iterator[Finding]:
    """Yield whether rows wait in a message table that the setting `tables` does not name, and no relay delivers.

    Args:
        connection: In autocommit.
    """
    table = MessageTable(names)
    if (connection.info.dbname, names.schema, names.message) in named or not may_use_schema(connection, names.schema):
        return
    places = source_name(names.schema, names.message), source_name(names.schema, names.source)
    if connection.execute(_READABLE, places).fetchone() != (True,):
        return
    row = connection.execute(table.compose(_OLDEST)).fetchone()
    if row is None:
        return
    what, owner = "table mode", TableView(table, connection).owner()
    if owner and owner.may_deliver:
        found = f"{table.full_name} is delivered by database session {owner.pid}; the setting tables does not name it"
        yield Finding(what, "", found)
        return
    yield Finding(
        what,
        f"rows wait in {table.full_name}, the oldest for {row[0]} s: no relay delivers it, and the setting tables does "
        "not name it",
        "name it in the setting tables (OUTBOX_TABLES) of every relay, and of this command",
    )
