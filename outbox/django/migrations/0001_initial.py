"""Make the tables of table mode, with the library's own DDL."""

from typing import Any, LiteralString

from django.db import migrations, models
from django.db.migrations.exceptions import IrreversibleError

from outbox._postgres.ddl import script
from outbox._postgres.message_table import MessageTable
from outbox.django import table_names
from outbox.django.models import table

_COLUMNS = [
    ("id", models.BigIntegerField(primary_key=True, serialize=False)),
    ("created_at", models.DateTimeField()),
    ("service", models.TextField()),
    ("topic", models.TextField()),
]
_OF_DISCARDED = [
    ("reason", models.TextField()),
    ("detail", models.TextField()),
    ("discarded_at", models.DateTimeField()),
]
_HELD: LiteralString = (
    "SELECT count(*) FROM (SELECT id FROM {message} UNION ALL SELECT id FROM {scheduled} UNION ALL"
    " SELECT id FROM {discarded}) AS held"
)


def _make(_apps: Any, editor: Any) -> None:
    if editor.connection.vendor == "postgresql":
        editor.execute(MessageTable(table_names()).ddl(), None)


def _drop(_apps: Any, editor: Any) -> None:
    if editor.connection.vendor != "postgresql":
        return
    table = MessageTable(table_names())
    with editor.connection.cursor() as cursor:
        cursor.execute(table.compose("LOCK TABLE {message}, {scheduled}, {discarded}"))
        cursor.execute(table.compose(_HELD))
        if held := cursor.fetchone()[0]:
            raise IrreversibleError(f"{held} messages wait or are discarded. Deliver or drop them first.")
    editor.execute(script(table.drop_statements()), None)


def _shown(name: str, columns: list[Any], made: str) -> migrations.CreateModel:
    options = {"managed": False, "db_table": table(made)}
    return migrations.CreateModel(name=name, fields=columns, options=options)


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """On a database that is no Postgres it does nothing: there the outbox is one in memory."""

    initial = True
    operations = [  # noqa: RUF012 - as Django has it
        migrations.RunPython(_make, _drop),
        _shown("WaitingMessage", _COLUMNS, table_names().message),
        _shown("DiscardedMessage", [*_COLUMNS, *_OF_DISCARDED], table_names().discarded),
    ]
