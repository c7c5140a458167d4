"""System checks of `manage.py migrate` and `manage.py check --database default`: the table, and the right on it."""

from collections.abc import Iterable
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections, router
from django.db.migrations.recorder import MigrationRecorder

from outbox._postgres.ddl import identifier
from outbox.django import table_names

_MIGRATION = ("outbox", "0001_initial")
_ASK = (
    "SELECT CAST(current_user AS text), to_regclass(%s) IS NOT NULL,"
    " coalesce(has_column_privilege(to_regclass(%s), 'topic', 'INSERT'), false)"
)


@register(Tags.database)  # type: ignore[untyped-decorator]  # Django has no types
def check_tables(databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check table and right in each database to which the app was migrated."""
    return [found for alias in databases or () if router.allow_migrate(alias, "outbox") for found in _check(alias)]


def _check(alias: str) -> list[CheckMessage]:
    connection, names = connections[alias], table_names()
    if connection.vendor != "postgresql" or _MIGRATION not in MigrationRecorder(connection).applied_migrations():
        return []  # Django itself reports migrations that are not applied
    table = identifier(names.schema, names.message)
    with connection.cursor() as cursor:
        cursor.execute(_ASK, [table, table])
        role, exists, may_insert = cursor.fetchone()
    if not exists:
        hint = "Are schema and prefix of OUTBOX as when it was migrated? What waits is in the tables of that time."
        return [Error(f"The table {table} does not exist in {alias}.", hint=hint, id="outbox.E001")]
    if not may_insert:
        hint = f"Run the SQL of outbox.ddl(application_roles=[{role!r}]) as the owner of the tables."
        return [Error(f"The role {role} may not insert into {table}.", hint=hint, id="outbox.E002")]
    return []
