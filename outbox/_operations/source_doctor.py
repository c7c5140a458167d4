"""What is found of the message tables that the setting `tables` names, and of one that it does not name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import psycopg

from outbox._operations.finding import Finding
from outbox._operations.foreign_doctor import examine_foreign
from outbox._operations.source_report import SourceReporter
from outbox._operations.table_doctor import TableDoctor
from outbox._postgres.ddl import may_use_schema
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._rules.qualified_name import QualifiedName
from outbox.protocol.names import Channel
from outbox.settings import TableNames


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
    tables: Mapping[str, SourceSettings], kafka: Mapping[str, str], channel: Channel
) -> Iterator[Finding]:
    """Yield what is found of the table sources, each in its database and in Kafka.

    Args:
        tables: The setting `tables`.
        kafka: librdkafka properties.
        channel: The channel.
    """
    reporter = SourceReporter(kafka, channel)
    for source, table in tables.items():
        if table.is_foreign:
            foreign = ForeignSource(table.names(), table.foreign_name())
            yield from examine_foreign(source, foreign, table.connection_string(), reporter)
        else:
            yield from TableDoctor(source, table.names(), table.connection_string()).examine(kafka, channel, reporter)


def examine_unnamed(connection: psycopg.Connection[Any], names: TableNames) -> Iterator[Finding]:
    """Yield whether rows wait in a message table that the setting `tables` does not name.

    Args:
        connection: In autocommit.
        names: The tables.
    """
    if not may_use_schema(connection, names.schema):
        return
    table = MessageTable(names)
    place = f'"{names.schema}"."{names.message}"'
    readable = "SELECT coalesce(has_table_privilege(to_regclass(%s), 'SELECT'), false)"
    if connection.execute(readable, (place,)).fetchone() != (True,):
        return
    if connection.execute(table.compose("SELECT EXISTS (SELECT FROM {message})")).fetchone() == (True,):
        yield Finding(
            "table mode",
            f"rows wait in {table.full_name}, and the setting tables names no message table",
            "name it in the setting tables (OUTBOX_TABLES) of every relay, and of this command",
        )
