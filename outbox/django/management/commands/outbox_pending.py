"""`manage.py outbox_pending`: what waits."""

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, OperationalError, connections

from outbox._postgres.ddl import identifier
from outbox.django import table_names

_WAITING = "SELECT topic, count(*), min({time}) FROM {table} GROUP BY topic ORDER BY topic"


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Show how many messages wait, by topic."""

    help = "Show by topic how many messages wait for the relay, and since when; and how many wait for their time."
    nothing = "No message waits."

    def add_arguments(self, parser: Any) -> None:
        """Add the alias of the database."""
        parser.add_argument("--database", default="default", help="Alias of the database.")

    def handle(self, *_: Any, database: str, **_options: Any) -> None:
        """Print the lines of `lines()`."""
        try:
            with connections[database].cursor() as cursor:
                self.stdout.write("\n".join(self.lines(cursor)) or self.nothing)
        except OperationalError as error:
            raise CommandError(f"{error}\nStart the database, or correct DATABASES.") from error
        except DatabaseError as error:
            raise CommandError(
                f"{error}\nMigrate, and run this as a role that may read the outbox's tables, such as their owner."
            ) from error

    def lines(self, cursor: Any) -> Iterator[str]:
        """Yield a line for each topic."""
        names = table_names()
        tables = (names.scheduled, "not_before", "not before"), (names.message, "created_at", "since")
        for table, time, words in tables:  # in the order in which messages move: none is missed
            cursor.execute(_WAITING.format(time=time, table=identifier(names.schema, table)))
            yield from (f"{topic}: {count} {words} {first:%Y-%m-%d %H:%M:%S %Z}" for topic, count, first in cursor)
