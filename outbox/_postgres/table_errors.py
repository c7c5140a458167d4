"""What Postgres refuses about the project's tables, as an error that names the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from outbox._postgres.ddl import written
from outbox.errors import TableError
from outbox.settings import TableNames

_MISSING = frozenset({"42P01", "3F000"})
"""SQLSTATEs: no such table, no such schema."""

_NO_RIGHT = "42501"

_POLICY_ROUTINES = frozenset({"check_enable_rls", "ExecWithCheckOptions"})
"""Where Postgres refuses a statement for a policy, with the SQLSTATE of a missing right."""

_OF_POSTGRES = re.compile(r"\bpg_(?:(locks|stat_activity)|control_system|(?:try_)?advisory_\w+)")
"""A view or function of Postgres from which rights may be revoked, as a message names it in any language."""

APPLICATION = "--application-role ROLE"

LOOK = "connect as the role of the relay, or one with its SELECT rights"
"""What helps a role that may not look at the tables."""


@contextmanager
def explained(schema: str, table: str, right: str = APPLICATION) -> Iterator[None]:
    """Run statements on a table of the project; see `explanation_of`."""
    try:
        yield
    except Exception as error:
        if (explanation := explanation_of(error, schema, table, right)) is not None:
            raise explanation from error
        raise


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error of any driver, also inside one of SQLAlchemy or Django; None if it has none."""
    return _field_of(error, "C", "sqlstate", "pgcode")  # pg8000; psycopg and asyncpg; psycopg2


def _field_of(error: BaseException, letter: str, *names: str) -> str | None:
    for found in (error, getattr(error, "orig", None), error.__cause__):
        for name in names:
            if value := getattr(found, name, None) or getattr(getattr(found, "diag", None), name, None):
                return str(value)
        details = getattr(found, "args", None)
        if details and isinstance(details[0], dict):  # pg8000
            return details[0].get(letter)
    return None


def explanation_of(error: BaseException, schema: str, table: str, right: str = APPLICATION) -> TableError | None:
    """Return the error that names the remedy; None if another one is better.

    Args:
        error: An error of any driver, of SQLAlchemy or of Django.
        right: The options of `outbox table create` that give the role of the connection what it needs; empty: it only
            looks, as another role may.
    """
    state = sqlstate_of(error)
    if state in _MISSING:
        return TableError(
            f"table {written(schema, table)} does not exist in this database: "
            f"run `outbox table create{options(schema, table)}`, or correct schema and table prefix"
        )
    if state != _NO_RIGHT:
        return None
    what = getattr(getattr(error, "diag", None), "message_primary", None) or f"permission denied for {table}"
    if _field_of(error, "R", "source_function", "server_source_function") in _POLICY_ROUTINES:
        return TableError(
            f"row security hides rows of table {written(schema, table)}, or of one beside it, from this role, or "
            f"refuses them ({what}): run ALTER TABLE … DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS"
        )
    if found := _OF_POSTGRES.search(what):
        right = f"{'SELECT ON' if found[1] else 'EXECUTE ON FUNCTION'} {found[0]}"
        return TableError(f"{what}: let a superuser run GRANT {right} to this role")
    if not right:
        return TableError(f"{what} (schema {written(schema)}): {LOOK}")
    return TableError(
        f"{what} (schema {written(schema)}): let the owner of the tables run "
        f"`outbox table create{options(schema, table)} {right}` with the role of this connection"
    )


def options(schema: str, table: str) -> str:
    """Return the options of `outbox table create` for a table, each after a space; none where it is the default."""
    prefix, given = table.rpartition("_")[0], TableNames()
    schema_option = f" --schema {schema}" if schema != given.schema else ""
    return f"{schema_option} --table-prefix {prefix}" if prefix != given.prefix else schema_option
