"""What Postgres refuses about the project's tables, as an error that names the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from outbox._postgres.ddl import written
from outbox.errors import TableError
from outbox.settings import TableNames

_MISSING = frozenset({"42P01", "3F000"})
"""SQLSTATEs: no such table, no such schema."""

_NO_RIGHT = "42501"


@contextmanager
def explained(schema: str, table: str) -> Iterator[None]:
    """Run statements on a callback table."""
    try:
        yield
    except psycopg.Error as error:
        if (explanation := explanation_of(error, schema, table)) is not None:
            raise explanation from error
        raise


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error of any driver, also inside one of SQLAlchemy or Django; None if it has none."""
    for found in (error, getattr(error, "orig", None), error.__cause__):
        for name in ("sqlstate", "pgcode"):  # psycopg and asyncpg; psycopg2
            if getattr(found, name, None):
                return str(getattr(found, name))
        details = getattr(found, "args", None)
        if details and isinstance(details[0], dict):  # pg8000
            return details[0].get("C")
    return None


def explanation_of(error: BaseException, schema: str, table: str) -> TableError | None:
    """Return the error that names the remedy; None if another one is better.

    Args:
        error: An error of any driver, of SQLAlchemy or of Django.
    """
    state = sqlstate_of(error)
    if state in _MISSING:
        return TableError(
            f"table {written(schema, table)} does not exist in this database: "
            f"run `outbox table create{_options(schema, table)}`, or correct schema and table prefix"
        )
    if isinstance(error, psycopg.Error) and error.diag.source_function == "check_enable_rls":
        return TableError(
            f"row security hides rows of table {written(schema, table)}, or of one beside it, from this role "
            f"({error.diag.message_primary}): run ALTER TABLE … DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS"
        )
    if state == _NO_RIGHT:
        what = error.diag.message_primary if isinstance(error, psycopg.Error) else f"permission denied for {table}"
        return TableError(
            f"{what} (schema {written(schema)}): let the owner of the tables run "
            f"`outbox table create{_options(schema, table)} --application-role ROLE` with the role of this connection"
        )
    return None


def _options(schema: str, table: str) -> str:
    """Return the options of `outbox table create` for a table, each after a space; none where it is the default."""
    prefix, given = table.rpartition("_")[0], TableNames()
    schema_option = f" --schema {schema}" if schema != given.schema else ""
    return f"{schema_option} --table-prefix {prefix}" if prefix != given.prefix else schema_option
