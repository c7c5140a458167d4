"""The callback table in Postgres: its DDL, its verification, and the statements that the library runs on it.

The committed row under the unique transaction id is the decision (R1); everything else is a cached copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from outbox.errors import CallbackTableError
from outbox.protocol.positions import Positions
from outbox.settings import TableNames

SCHEMA_VERSION = "1"

_DDL: LiteralString = """
CREATE TABLE IF NOT EXISTS {transaction} (
    transaction_id uuid PRIMARY KEY,
    producer_group text NOT NULL,
    state char(1) NOT NULL CHECK (state IN ('C', 'R')),
    channel text NOT NULL,
    half_topic_id uuid NOT NULL,
    half_partition integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    positions text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {transaction} IS
    'One row per message transaction. C: committed, by the application. R: tombstone of the checker. Never updated.';
CREATE TABLE IF NOT EXISTS {meta} (
    key text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE {meta} IS 'Incarnation of this database, version of this schema, purge watermarks.';
INSERT INTO {meta} (key, value) VALUES ('incarnation', gen_random_uuid()::text), ('schema_version', '{version}')
    ON CONFLICT (key) DO NOTHING;
CREATE TABLE IF NOT EXISTS {fence} (
    id integer PRIMARY KEY,
    written_at timestamptz NOT NULL
);
COMMENT ON TABLE {fence} IS 'Takes one synchronous write before a COMMITTED verdict is published.';
INSERT INTO {fence} (id, written_at) VALUES (0, now()) ON CONFLICT (id) DO NOTHING;
"""

_OPEN: LiteralString = (
    "SELECT pg_advisory_xact_lock(%s), (SELECT value FROM {meta} WHERE key = 'incarnation'),"
    " current_setting('synchronous_commit'), current_setting('outbox.transaction', true)"
)
_INSERT: LiteralString = (
    "INSERT INTO {transaction} (transaction_id, producer_group, state, channel, half_topic_id, half_partition,"
    " first_offset, last_offset, positions) VALUES (%s, %s, 'C', %s, %s, %s, %s, %s, %s)"
)

_FIND: LiteralString = "SELECT 1 FROM {transaction} WHERE transaction_id = %s AND state = 'C'"

# R12: what would make the fence void.
_VERIFY: LiteralString = """
SELECT c.relpersistence, c.relkind,
       (SELECT array_agg(a.attname::text ORDER BY a.attname)
          FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
         WHERE i.indrelid = c.oid AND i.indisprimary),
       (SELECT bool_or(k.condeferrable) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p'),
       (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal),
       (SELECT pg_get_partkeydef(c.oid))
  FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


@dataclass(frozen=True, slots=True)
class Opened:
    """A database transaction in which halves may be sent: its lock is held.

    Args:
        incarnation: Incarnation of the database (R10).
        synchronous: Whether its COMMIT will wait for the disk (R7).
        mark: Transaction id that the library began it with, if it did.
    """

    incarnation: str
    synchronous: bool
    mark: str | None


@dataclass(frozen=True, slots=True)
class CallbackRow:
    """The row that decides, as the application inserts it."""

    transaction_id: str
    producer_group: str
    channel: str
    half_topic_id: str
    half_partition: int
    first_offset: int
    last_offset: int
    positions: Positions

    def values(self) -> tuple[str, str, str, str, int, int, int, str]:
        """The row's columns, but for state and time."""
        return (
            self.transaction_id,
            self.producer_group,
            self.channel,
            self.half_topic_id,
            self.half_partition,
            self.first_offset,
            self.last_offset,
            str(self.positions),
        )


class CallbackTable:
    """Statements on the callback tables under given names.

    Args:
        names: Where the tables are.
    """

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self._names = {
            "transaction": sql.Identifier(names.schema, names.transaction),
            "meta": sql.Identifier(names.schema, names.meta),
            "fence": sql.Identifier(names.schema, names.fence),
        }
        self.open_statement = self.compose(_OPEN)
        self.insert_statement = self.compose(_INSERT)
        self.find_statement = self.compose(_FIND)

    def compose(self, text: LiteralString) -> sql.Composed:
        """A statement with the tables' names in place of `{transaction}`, `{meta}` and `{fence}`."""
        return sql.SQL(text).format(**self._names)

    def ddl(self) -> str:
        """The SQL that makes the tables; running it again is safe."""
        schema = sql.SQL("CREATE SCHEMA IF NOT EXISTS {};").format(sql.Identifier(self.names.schema))
        return schema.as_string() + self._tables_ddl()

    def _tables_ddl(self) -> str:
        return sql.SQL(_DDL).format(**self._names, version=sql.SQL(SCHEMA_VERSION)).as_string().rstrip() + "\n"

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Make the tables in one transaction, and their schema if there is none.

        Raises:
            CallbackTableError: The role has not the rights.
        """
        exists = connection.execute("SELECT to_regnamespace(%s)", (f'"{self.names.schema}"',)).fetchone()
        # CREATE SCHEMA IF NOT EXISTS needs the right to create one even where it exists.
        ddl = self._tables_ddl() if exists is not None and exists[0] is not None else self.ddl()
        try:
            with connection.transaction():
                connection.execute(ddl.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise CallbackTableError(
                f"role {connection.info.user} may not create the tables ({error.diag.message_primary}): "
                "let a role that may run `outbox table create`, or the SQL of `outbox table sql`"
            ) from error

    def problems(self, connection: psycopg.Connection[Any]) -> list[str]:
        """What is wrong with the tables (R12), one sentence each, with what to do."""
        name = f"{self.names.schema}.{self.names.transaction}"
        row = connection.execute(_VERIFY, (f'"{self.names.schema}"."{self.names.transaction}"',)).fetchone()
        if row is None:
            return [f"table {name} does not exist: run `outbox table create`, or the SQL of `outbox table sql`"]
        persistence, kind, key, deferrable, triggers, partition_key = row
        checks = {
            "is not an ordinary table: it must be one, or hash-partitioned by transaction_id": kind in {"r", "p"}
            and (kind == "r" or str(partition_key) == "HASH (transaction_id)"),
            "is not logged: a crash would empty it; run ALTER TABLE … SET LOGGED": persistence == "p",
            "needs the primary key (transaction_id), and nothing more in it": key == ["transaction_id"],
            "has a deferrable primary key: the fence would be void; make it NOT DEFERRABLE": not deferrable,
            "has triggers: drop them, they could change a decision": triggers == 0,
        }
        return [f"table {name} {problem}" for problem, fine in checks.items() if not fine] or self._meta_problems(
            connection
        )

    def _meta_problems(self, connection: psycopg.Connection[Any]) -> list[str]:
        try:
            rows = connection.execute(self.compose("SELECT key, value FROM {meta}")).fetchall()
        except psycopg.errors.UndefinedTable:
            return [f"table {self.names.schema}.{self.names.meta} does not exist: run `outbox table create`"]
        except psycopg.errors.InsufficientPrivilege:
            return []  # for `missing_grants` to tell
        found = dict(rows)
        if "incarnation" not in found:
            return [f"table {self.names.schema}.{self.names.meta} has no incarnation: run `outbox table create`"]
        if found.get("schema_version") != SCHEMA_VERSION:
            return [f"the tables are of version {found.get('schema_version')}, this library needs {SCHEMA_VERSION}"]
        return []

    def missing_grants(
        self, connection: psycopg.Connection[Any], needed: Mapping[str, Sequence[str]]
    ) -> list[tuple[str, str]]:
        """Privileges that the present role lacks.

        Args:
            connection: Of that role.
            needed: Privileges by table name.

        Returns:
            Privilege and full table name of each.
        """
        missing = []
        for name, privileges in needed.items():
            quoted = f'"{self.names.schema}"."{name}"'
            for privilege in privileges:
                row = connection.execute(
                    "SELECT has_table_privilege(to_regclass(%s), %s)", (quoted, privilege)
                ).fetchone()
                if row is None or not row[0]:
                    missing.append((privilege, f"{self.names.schema}.{name}"))
        return missing

    def verify(self, connection: psycopg.Connection[Any]) -> None:
        """Check the tables.

        Raises:
            CallbackTableError: They are missing or wrong; the message says what to do.
        """
        problems = self.problems(connection)
        if problems:
            raise CallbackTableError("; ".join(problems))
