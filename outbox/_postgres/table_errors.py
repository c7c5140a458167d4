"""What Postgres refuses about the project's tables, as an error that names the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from outbox._postgres.ddl import written
from outbox.errors import CallbackTableError


@contextmanager
def explained(schema: str, table: str) -> Iterator[None]:
    """Run statements on a callback table.

    Args:
        schema: Its schema.
        table: Its name.

    Raises:
        CallbackTableError: The table does not exist, or this role lacks a right on it.
    """
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise CallbackTableError(
            f"table {written(schema, table)} does not exist in this database: "
            "run `outbox table create`, or the SQL of `outbox table sql`"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise CallbackTableError(
            f"{error.diag.message_primary} (schema {written(schema)}): let the owner of the tables run "
            "`outbox table create --application-role ROLE` with the role of this connection"
        ) from error
