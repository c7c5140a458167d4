"""The callback table in Postgres: its DDL, its verification, and the statements that the library runs on it.

The committed row under the unique transaction id is the decision (R1); everything else is a cached copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

from outbox._postgres.ddl import Grant, Tables, identifier, literal, missing_rights, written
from outbox._postgres.table_contract import BOUNDS, Places, Table, breaches
from outbox.errors import TableError
from outbox.protocol.identifiers import created_ms
from outbox.protocol.positions import Positions
from outbox.settings import TableNames

if TYPE_CHECKING:  # as in `ddl`
    import psycopg

SCHEMA_VERSION = "1"

_DDL: LiteralString = """
CREATE TABLE IF NOT EXISTS {transaction} (
    transaction_id uuid PRIMARY KEY,
    service text NOT NULL,
    state char(1) NOT NULL CHECK (state IN ('C', 'R')),
    channel text NOT NULL,
    half_topic_id uuid NOT NULL,
    half_partition integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    positions text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT outbox_bounds CHECK ({bounds})
);
COMMENT ON TABLE {transaction} IS
    'One row per message transaction. C: committed, by the application. R: rollback row of the checker. Never updated.';
DO $$ DECLARE part regclass; BEGIN
    FOR part IN SELECT oid FROM pg_class WHERE relkind = 'r' AND oid IN (SELECT to_regclass({quoted})
        UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass({quoted})) LOOP
        EXECUTE format('ALTER TABLE %s SET ({storage})', part); END LOOP; END $$;
CREATE TABLE IF NOT EXISTS {meta} (
    key text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE {meta} IS 'Part of the incarnation of this database, version of this schema, purge watermarks.';
INSERT INTO {meta} (key, value) VALUES ('incarnation', gen_random_uuid()::text), ('schema_version', '{version}')
    ON CONFLICT (key) DO NOTHING;
CREATE TABLE IF NOT EXISTS {fence} (
    id integer PRIMARY KEY,
    written_at timestamptz NOT NULL
);
COMMENT ON TABLE {fence} IS 'Takes one synchronous write before a COMMITTED verdict is published.';
INSERT INTO {fence} (id, written_at) VALUES (0, now()) ON CONFLICT (id) DO NOTHING;
"""

# Rows are inserted at one end, deleted at the other, and never updated. By default a vacuum would wait until a fifth of
# the table is dead; here it comes early, so that new rows take the place of purged ones, and the table does not grow.
_STORAGE: LiteralString = (
    "autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_scale_factor = 0.01,"
    " autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_insert_scale_factor = 0.01,"
    " autovacuum_analyze_threshold = 50000, autovacuum_analyze_scale_factor = 0.01"
)

_INCARNATION: LiteralString = (
    "(SELECT encode(substr(sha256(convert_to(concat_ws(' ', value, system_identifier, database.oid), 'UTF8')), 1, 16),"
    " 'hex')::uuid::text FROM {meta}, pg_catalog.pg_control_system(), pg_catalog.pg_database AS database"
    " WHERE key = 'incarnation' AND database.datname = current_database())"
)
"""The incarnation of this database (R10): a hash of the value in its table, its server's identifier and its own oid.

A dump that is restored has the same value in its table, and is another database all the same.
"""

_SERVER: LiteralString = (
    "(SELECT concat_ws(' ', value, database.oid, extract(epoch FROM pg_catalog.pg_postmaster_start_time()))"
    " FROM {meta}, pg_catalog.pg_database AS database WHERE key = 'incarnation' AND datname = current_database())"
)
"""What changes with the incarnation and is read in no time: the file of `pg_control_system()` takes 60 us.

A server keeps its identifier while it runs. A pooler may lead a connection to another one, which began at another time.
"""

_MAY_IDENTIFY: LiteralString = "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"

_OPEN: LiteralString = "SELECT pg_advisory_xact_lock(%s), {incarnation}, {server}"
_INSERT: LiteralString = (  # the lock is taken before the row is made, and with it the row's unique key
    "INSERT INTO {transaction} (transaction_id, service, state, channel, half_topic_id, half_partition,"
    " first_offset, last_offset, positions, created_at)"
    " SELECT %s::uuid, %s, 'C', %s, %s::uuid, %s, %s, %s, %s, clock_timestamp() FROM pg_advisory_xact_lock(%s)"
    " RETURNING current_setting('outbox.transaction', true), current_setting('synchronous_commit'),"
    " {server}"
)

_FIND: LiteralString = (
    "SELECT EXISTS (SELECT FROM {transaction} WHERE transaction_id = %s AND state = 'C'),"
    " (SELECT max(value::bigint) FROM {meta} WHERE key = 'purged_until')"
)


@dataclass(frozen=True, slots=True)
class CallbackRow:
    """The row that decides, as the application inserts it."""

    transaction_id: str
    service: str
    channel: str
    half_topic_id: str
    half_partition: int
    first_offset: int
    last_offset: int
    positions: Positions

    def values(self) -> tuple[str, str, str, str, int, int, int, str]:
        """Return the row's columns, but for state and time."""
        return (
            self.transaction_id,
            self.service,
            self.channel,
            self.half_topic_id,
            self.half_partition,
            self.first_offset,
            self.last_offset,
            str(self.positions),
        )


class CallbackTable(Tables):
    """Statements on the callback tables under given names."""

    _text = _DDL

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self._names = {
            "transaction": identifier(names.schema, names.transaction),
            "meta": identifier(names.schema, names.meta),
            "fence": identifier(names.schema, names.fence),
            "quoted": literal(identifier(names.schema, names.transaction)),
            "version": SCHEMA_VERSION,
            "storage": _STORAGE,
            "bounds": BOUNDS[Table.CALLBACK],
        }
        parts = {"incarnation": _INCARNATION, "server": _SERVER}
        self._names |= {name: self.compose(text) for name, text in parts.items()}
        self.open_statement = self.compose(_OPEN)
        self.insert_statement = self.compose(_INSERT)
        self.find_statement = self.compose(_FIND)

    @property
    def full_name(self) -> str:
        """Return the callback table's schema and name, as SQL writes them."""
        return written(self.names.schema, self.names.transaction)

    def application_grant(self, role: str) -> Grant:
        """Return what the library's statements need: the seal inserts and reads the row, and reads the incarnation."""
        rights = {self.names.transaction: ("SELECT", "INSERT"), self.names.meta: ("SELECT",)}
        return Grant(self.names.schema, role, rights)

    def checker_grant(self, role: str) -> Grant:
        """Return what the checker needs: rollback rows, purge with its watermarks, the durability write (R9).

        The first watermark of a half partition is a new row of the meta table: that takes INSERT.
        """
        rights = {
            self.names.transaction: ("SELECT", "INSERT", "DELETE"),
            self.names.meta: ("SELECT", "INSERT", "UPDATE"),
            self.names.fence: ("SELECT", "UPDATE"),
        }
        return Grant(self.names.schema, role, rights)

    def viewer_grant(self, role: str) -> Grant:
        """Return what an operator needs who only looks."""
        return Grant(self.names.schema, role, {self.names.transaction: ("SELECT",), self.names.meta: ("SELECT",)})

    @property
    def places(self) -> Places:
        names = self.names
        tables = {Table.CALLBACK: names.transaction, Table.META: names.meta, Table.FENCE: names.fence}
        return {table: (names.schema, name) for table, name in tables.items()}

    def problems(self, connection: psycopg.Connection[Any]) -> list[str]:
        """Return what is wrong with the tables (R12, R75), one sentence each, with what to do."""
        return [str(breach) for breach in breaches(connection, self.places)] or self._meta_problems(connection)

    def _meta_problems(self, connection: psycopg.Connection[Any]) -> list[str]:
        name = written(self.names.schema, self.names.meta)
        if missing_rights(connection, self.names.schema, {self.names.meta: ("SELECT",)}):
            return []  # who asks for all rights reports it
        found = dict(connection.execute(self.compose("SELECT key, value FROM {meta}")).fetchall())
        if "incarnation" not in found:
            return [f"table {name} has no incarnation: run `outbox table create`"]
        if found.get("schema_version") != SCHEMA_VERSION:
            return [f"the tables are of version {found.get('schema_version')}, this library needs {SCHEMA_VERSION}"]
        if connection.execute(_MAY_IDENTIFY).fetchone() != (True,):
            grant = f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {written(connection.info.user)}"
            return [f"this role may not ask which server it is, for the incarnation: let a superuser run {grant}"]
        return []

    def incarnation(self, connection: psycopg.Connection[Any]) -> str | None:
        """Return the incarnation of the database (R10); None: its table has none."""
        ((found,),) = connection.execute(self.compose("SELECT {incarnation}")).fetchall()
        return None if found is None else str(found)

    def verify(self, connection: psycopg.Connection[Any]) -> None:
        problems = self.problems(connection)
        if problems:
            raise TableError("; ".join(problems))


CLOCK_SKEW_MS = 600_000
"""How far the application's clock, which is in the id, may be from the database's."""


def may_be_purged(transaction_id: str, purged_until: int | None) -> bool:
    """Return whether the row may have been purged; `purged_until` is the newest time of one that was, in ms."""
    return purged_until is not None and created_ms(transaction_id) <= purged_until + CLOCK_SKEW_MS
