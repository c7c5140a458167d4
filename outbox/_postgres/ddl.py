"""What the tables' DDL is made of: statements that run one by one or are printed, and the rights of a role."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from outbox.errors import ConfigurationError, TableError

Rights = Mapping[str, Sequence[LiteralString]]
"""Privileges by table name."""

_MAX_NAME_BYTES = 63  # NAMEDATALEN - 1: Postgres would cut a longer name, and take another role

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")

_CREATE_SCHEMA: LiteralString = (
    "DO $$ BEGIN IF to_regnamespace({quoted}) IS NULL THEN CREATE SCHEMA {schema}; END IF; END $$"
)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights that a role gets on tables of one schema, and no more."""

    schema: str
    role: str
    rights: Rights

    def __post_init__(self) -> None:
        """Refuse names that Postgres would take for another role; it reads even a quoted "public" as everybody."""
        if self.role == "public" or not 0 < len(self.role.encode()) <= _MAX_NAME_BYTES or "\0" in self.role:
            raise ConfigurationError(
                f"role {self.role!r} cannot get rights: name one role, at most 63 bytes, not public"
            )

    def statements(self) -> list[sql.Composed]:
        schema, role = sql.Identifier(self.schema), sql.Identifier(self.role)
        return [
            sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, role),
            *(
                sql.SQL("GRANT {} ON {} TO {}").format(
                    sql.SQL(", ").join(sql.SQL(privilege) for privilege in privileges),
                    sql.Identifier(self.schema, table),
                    role,
                )
                for table, privileges in self.rights.items()
            ),
        ]


def written(*names: str) -> str:
    """Return a name as SQL writes it, for people: its parts are quoted where they must be."""
    return ".".join(name if _PLAIN.fullmatch(name) else sql.Identifier(name).as_string() for name in names)


def all_statements(grants: Iterable[Grant]) -> list[sql.Composed]:
    return [statement for grant in grants for statement in grant.statements()]


def create_schema(schema: str) -> sql.Composed:
    """Make a schema if there is none: CREATE SCHEMA IF NOT EXISTS needs the right to create one where it exists."""
    return sql.SQL(_CREATE_SCHEMA).format(quoted=sql.Literal(f'"{schema}"'), schema=sql.Identifier(schema))


def drop_tables(schema: str, tables: Iterable[str]) -> sql.Composed:
    names = sql.SQL(", ").join(sql.Identifier(schema, table) for table in tables)
    return sql.SQL("DROP TABLE IF EXISTS {}").format(names)


def split(text: LiteralString) -> list[sql.SQL]:
    """Return the single statements of a text in which each ends with a semicolon and a line break."""
    return [sql.SQL(statement) for statement in text.strip().removesuffix(";").split(";\n")]


def script(statements: Iterable[sql.Composable]) -> str:
    """Return the statements as text for `psql`, or for a migration of one's own."""
    return "".join(f"{statement.as_string()};\n" for statement in statements)


def run(
    connection: psycopg.Connection[Any],
    statements: Iterable[sql.Composed],
    grants: Sequence[Grant],
    command: LiteralString,
) -> None:
    """Create tables and grant privileges on them, in one transaction."""
    try:
        with connection.transaction():
            for statement in (*statements, *all_statements(grants)):
                connection.execute(statement)
            for grant in grants:
                _require(connection, grant)
    except psycopg.errors.InsufficientPrivilege as error:
        raise TableError(
            f"role {connection.info.user} may not create the tables ({error.diag.message_primary}): "
            f"let a role that may run `outbox {command}`, or the SQL of its `--print-sql`"
        ) from error
    except psycopg.errors.UndefinedObject as error:
        raise TableError(f"{error.diag.message_primary}: create it first, then run this again") from error


class Tables:
    """Tables that are made together, by statements that may run again."""

    statements: Callable[..., list[sql.Composed]]
    """The statements, and that which makes their schema if there is none."""
    command: LiteralString = "table create"
    """Of `outbox`, which makes them."""

    def ddl(self, grants: Iterable[Grant] = (), **options: Any) -> str:
        """Return the SQL that makes the tables and gives rights on them; running it again is safe."""
        return script([*self.statements(**options), *all_statements(grants)])

    def create(self, connection: psycopg.Connection[Any], grants: Iterable[Grant] = (), **options: Any) -> None:
        """Make the tables in one transaction, and their schema if there is none."""
        run(connection, self.statements(**options), list(grants), self.command)


def _require(connection: psycopg.Connection[Any], grant: Grant) -> None:
    """Granting a schema that one may use and does not own is only a warning; on the tables it is an error."""
    if not may_use_schema(connection, grant.schema, grant.role):
        raise TableError(
            f"role {connection.info.user} may not grant USAGE on schema {written(grant.schema)} to {grant.role}: "
            "let the owner of the schema grant it, then run this again"
        )


def may_use_schema(connection: psycopg.Connection[Any], schema: str, role: str | None = None) -> bool:
    """Whether a role, by default the connection's, may look into a schema; one that is not there hinders no other."""
    query = "SELECT has_schema_privilege(coalesce(%s, current_user), oid, 'USAGE') FROM pg_namespace WHERE nspname = %s"
    return connection.execute(query, (role, schema)).fetchone() != (False,)


def missing_rights(
    connection: psycopg.Connection[Any], schema: str, rights: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Privileges on tables that the connection's role lacks.

    Returns:
        Privilege and full table name of each.
    """
    wanted = [(table, privilege) for table, privileges in rights.items() for privilege in privileges]
    return [
        (privilege, written(schema, table))
        for table, privilege in wanted
        if connection.execute(
            "SELECT has_table_privilege(to_regclass(%s), %s)", (f'"{schema}"."{table}"', privilege)
        ).fetchone()
        != (True,)
    ]
