"""System checks of `manage.py migrate` and `manage.py check --database default`: the table, and the right on it."""

from collections.abc import Iterable
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, connections, router, transaction
from django.db.migrations.recorder import MigrationRecorder

from outbox._postgres.ddl import identifier
from outbox._postgres.message_table import MessageTable
from outbox.django import table_names

_MIGRATION = ("outbox", "0001_initial")
_ASK = (
    "SELECT CAST(current_user AS text), has_column_privilege(c.oid, 'topic', 'INSERT')"
    " AND has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_class AS c"
    " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)


@register(Tags.database)  # type: ignore[untyped-decorator]  # Django has no types
def check_tables(databases: Iterable[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check table and right in each database to which the app was migrated."""
    return [found for alias in databases or () if router.allow_migrate(alias, "outbox") for found in _check(alias)]


def _check(alias: str) -> list[CheckMessage]:
    connection, names = connections[alias], table_names()
    if connection.vendor != "postgresql" or not _is_migrated(alias):
        return []  # Django itself reports migrations that are not applied
    table = identifier(names.schema, names.message)
    with connection.cursor() as cursor:
        cursor.execute(_ASK, [names.schema, names.message])
        found = cursor.fetchone()
    if found is None:
        hint = "Are schema and prefix of OUTBOX as when it was migrated? What waits is in the tables of that time."
        return [Error(f"The table {table} does not exist in {alias}.", hint=hint, id="outbox.E001")]
    role, may_insert = found
    if not may_insert:
        grants = "; ".join(MessageTable(names).application_grant(role).statements())
        hint = f"Run as the owner of the tables: {grants}"
        return [Error(f"The role {role} may not insert into {table}.", hint=hint, id="outbox.E002")]
    return []


def _is_migrated(alias: str) -> bool:
    """Return whether the tables should be there; a role that may not read the migrations is one of a program."""
    try:
        with transaction.atomic(using=alias):
            return _MIGRATION in MigrationRecorder(connections[alias]).applied_migrations()
    except DatabaseError:
        return True
