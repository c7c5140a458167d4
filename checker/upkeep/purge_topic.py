"""`outbox checker purge-topic`: purge the rows of a deleted half topic.

It is unknown whether their messages were delivered: the checkpoints went with the topic. So the purge skips
them, and the settlement audit reports them until an operator has decided.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg
import typer
from rich.table import Table

from checker.connection import connect
from checker.rules.settlement import LAST_ID, Old
from checker.settings import CheckerSettings, DatabaseSettings
from checker.upkeep import purge
from checker.upkeep.purge import Purge, Purged, Settled
from checker.upkeep.settlement_command import databases
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import verify_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connection_problem
from outbox._service.output import PlainConsole
from outbox.errors import ConfigurationError, UsageError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import check_uuid

_BEHIND_ALL = 2**62
"""An offset behind every half."""

_ALL = Old(committed_ms=2**47, rollback_rows_ms=0, before=LAST_ID)
"""Committed rows of any age, by any clock; no rollback rows."""

_COUNT: LiteralString = (
    "SELECT producer_group, half_partition, count(*) FROM {transaction}"
    " WHERE state = 'C' AND channel = %s AND half_topic_id = %s::uuid GROUP BY 1, 2 ORDER BY 1, 2"
)


def purge_topic(settings: CheckerSettings, topic_id: str, *, yes: bool) -> None:
    """Show the committed rows of a deleted half topic by database and group, ask, and delete them.

    Its rollback rows go by age, as all do.

    Raises:
        UsageError: That is no topic id, or that of the channel's present half topic.
        ConfigurationError: Kafka or a database cannot be used; reported rows are deleted.
    """
    _check(settings, topic_id)
    with ExitStack() as stack:
        found = {
            name: _Rows(name, database, settings, topic_id, stack)
            for name, database in databases(settings).items()
            if not _left_out(name, database)
        }
        _show(found, topic_id)
        if not any(rows.counts for rows in found.values()):
            typer.echo("there is nothing to delete")
        elif yes or typer.confirm("Delete them? No command can show the outcome of these transactions afterwards."):
            for name, rows in found.items():
                typer.echo(f"{rows.delete()} rows deleted from database {name}")


def _check(settings: CheckerSettings, topic_id: str) -> None:
    try:
        check_uuid(topic_id)
    except ProtocolError as error:
        raise UsageError(f"This is not a topic id: {error}") from None
    channel = verify_channel(admin_client(settings.connection()), settings.channel_names())
    if topic_id == channel.half.id:
        raise UsageError(
            f"{topic_id} is the id of {channel.half.name} as it is now: its rows go by themselves once they are settled"
        )


def _left_out(name: str, database: DatabaseSettings) -> bool:
    """Return whether nothing may be deleted there, and report the reason."""
    if database.read_only:
        typer.echo(f"database {name} is read_only: its rows stay")
    return database.read_only


class _Rows:
    """The committed rows of a deleted half topic in one database."""

    def __init__(
        self, name: str, database: DatabaseSettings, settings: CheckerSettings, topic_id: str, stack: ExitStack
    ) -> None:
        self._name = name
        self._database = database
        self._table = CallbackTable(database.tables())
        self._channel = settings.channel
        self._topic_id = topic_id
        try:
            self._connection = stack.enter_context(connect(database, "purge", purge.OPTIONS))
            self._table.verify(self._connection)
            self.counts = self._count()
        except psycopg.Error as error:
            raise self._refused(error) from error

    def delete(self) -> int:
        """Delete them in batches; how many."""
        partitions = {partition for _, partition in self.counts}
        settled = Settled(self._channel, self._topic_id, dict.fromkeys(partitions, _BEHIND_ALL))
        total = Purged()
        try:
            if not Purge(self._table, threading.Event()).run(self._connection, settled, _ALL, total.update):
                raise ConfigurationError(f"a checker purges database {self._name!r} at this moment: do it again")
        except psycopg.Error as error:
            raise self._refused(error) from error
        return total["C"]

    def _count(self) -> Mapping[tuple[str, int], int]:
        rows = self._connection.execute(self._table.compose(_COUNT), (self._channel, self._topic_id))
        return {(group, partition): count for group, partition, count in rows}

    def _refused(self, error: psycopg.Error) -> ConfigurationError:
        dsn = self._database.connection_string()
        return ConfigurationError(f"database {self._name!r} cannot be purged: {connection_problem(error, dsn)}")


def _show(found: Mapping[str, Any], topic_id: str) -> None:
    table = Table("database", "group", "half partition", "committed rows", title=f"half topic {topic_id}")
    for name, rows in found.items():
        for (group, partition), count in rows.counts.items():
            table.add_row(name, group, str(partition), str(count))
    PlainConsole().print(table)
