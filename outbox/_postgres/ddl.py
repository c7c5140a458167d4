"""What the tables' DDL is made of: quoted names, statements that run or are printed, and the rights of a role."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from outbox.errors import ConfigurationError, TableError
from outbox.settings import TableNames

if TYPE_CHECKING:  # who publishes through another driver does not need it
    import psycopg

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

    def statements(self) -> list[str]:
        role = identifier(self.role)
        return [
            f"GRANT USAGE ON SCHEMA {identifier(self.schema)} TO {role}",
            *(
                f"GRANT {', '.join(privileges)} ON {identifier(self.schema, table)} TO {role}"
                for table, privileges in self.rights.items()
            ),
        ]


def identifier(*names: str) -> str:
    """Return a name in quotes; of several names, such as schema and table, the qualified one."""
    return ".".join('"{}"'.format(_without_nul(name).replace('"', '""')) for name in names)


def literal(text: str) -> str:
    """Return a text as SQL has it, whatever `standard_conforming_strings` is."""
    quoted = "'{}'".format(_without_nul(text).replace("'", "''"))
    return " E" + quoted.replace("\\", "\\\\") if "\\" in quoted else quoted


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ConfigurationError(f"{text!r} has a NUL, at which Postgres would cut it. Remove it.")
    return text


def written(*names: str) -> str:
    """Return a name as SQL writes it, for people: its parts are quoted where they must be."""
    return ".".join(name if _PLAIN.fullmatch(name) else identifier(name) for name in names)


def create_schema(schema: str) -> str:
    """Make a schema if there is none: CREATE SCHEMA IF NOT EXISTS needs the right to create one where it exists."""
    return _CREATE_SCHEMA.format(quoted=literal(identifier(schema)), schema=identifier(schema))


def split(text: LiteralString) -> list[str]:
    """Return the single statements of a text in which each ends with a semicolon and a line break."""
    return text.strip().removesuffix(";").split(";\n")


def script(statements: Iterable[str]) -> str:
    """Return the statements as text for `psql`, or for a migration of one's own."""
    return "".join(f"{statement};\n" for statement in statements)


class Tables:
    """Tables that are made together, by statements that may run again."""

    names: TableNames
    command: LiteralString = "table create"
    """Of `outbox`, which makes them."""
    _text: LiteralString
    _names: dict[str, str]

    @property
    def places(self) -> Mapping[Any, tuple[str, str]]:
        """Return schema and name of each."""
        raise NotImplementedError

    def statements(self) -> list[str]:
        """Return the statements that make the tables, and their schema if there is none."""
        return [create_schema(self.names.schema), *map(self.compose, split(self._text))]

    def drop_statements(self) -> list[str]:
        """Return the statements that drop the tables, with all that waits or is decided in them."""
        return [f"DROP TABLE IF EXISTS {', '.join(identifier(*place) for place in self.places.values())}"]

    def compose(self, text: LiteralString) -> str:
        """Return a statement with the tables' names in place of `{message}` and so on, and SQL of other such parts."""
        return text.format(**self._names)

    def ddl(self, grants: Iterable[Grant] = ()) -> str:
        """Return the SQL that makes the tables and gives rights on them; running it again is safe."""
        return script([*self.statements(), *(statement for grant in grants for statement in grant.statements())])

    def create(self, connection: psycopg.Connection[Any], grants: Sequence[Grant] = ()) -> None:
        """Make the tables and give rights on them in one transaction, and their schema if there is none."""
        from psycopg.errors import InsufficientPrivilege, UndefinedObject  # noqa: PLC0415 - as above

        try:
            with connection.transaction():
                connection.execute(self.ddl(grants), prepare=False)  # several statements
                for grant in grants:
                    _require(connection, grant)
        except InsufficientPrivilege as error:
            raise TableError(
                f"role {connection.info.user} may not create the tables ({error.diag.message_primary}): "
                f"let a role that may run `outbox {self.command}`, or the SQL of its `--print-sql`"
            ) from error
        except UndefinedObject as error:
            raise TableError(f"{error.diag.message_primary}: create it first, then run this again") from error


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
    """Return privilege and full table name of each right that the connection's role lacks."""
    wanted = [(table, privilege) for table, privileges in rights.items() for privilege in privileges]
    return [
        (privilege, written(schema, table))
        for table, privilege in wanted
        if connection.execute(
            "SELECT has_table_privilege(to_regclass(%s), %s)", (identifier(schema, table), privilege)
        ).fetchone()
        != (True,)
    ]
