"""The inbox table in Postgres: which messages a consumer group has handled."""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from outbox._postgres.ddl import Grant, Tables, create_schema, drop_tables, split, written
from outbox._postgres.table_contract import Places, Table
from outbox.settings import TableNames

_DDL: LiteralString = """
CREATE TABLE IF NOT EXISTS {inbox} (
    consumer_group text NOT NULL,
    message_id text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, message_id)
);
COMMENT ON TABLE {inbox} IS
    'One row per message that a consumer group has handled, written in the transaction that handled it.';
CREATE INDEX IF NOT EXISTS {index} ON {inbox} (received_at);
"""

_INSERT: LiteralString = (
    "INSERT INTO {inbox} (consumer_group, message_id) VALUES ({group}, {id})"
    " ON CONFLICT (consumer_group, message_id) DO NOTHING RETURNING true"
)
_FIND: LiteralString = "SELECT true FROM {inbox} WHERE consumer_group = {group} AND message_id = {id}"
_TEXT: LiteralString = "convert_from(decode({}, 'hex'), 'UTF8')"
"""Makes a text of its UTF-8 in hexadecimal: no `client_encoding` decides which it is (R77)."""


class InboxTable(Tables):
    """DDL and insertion of the inbox table."""

    command = "table create --inbox"

    def __init__(self, names: TableNames) -> None:
        self.schema = names.schema
        self.name = names.inbox
        self._names = {
            "inbox": sql.Identifier(self.schema, self.name),
            "index": sql.Identifier(f"{self.name}_time"),
        }

    @property
    def full_name(self) -> str:
        """Return schema and name, as SQL writes them."""
        return written(self.schema, self.name)

    @property
    def places(self) -> Places:
        return {Table.INBOX: (self.schema, self.name)}

    def once_statements(self, group: LiteralString, id_: LiteralString) -> list[str]:
        """Return what remembers a message, with a row if it is new, and what looks for it.

        Both take a driver's placeholders, for UTF-8 in hexadecimal.
        """
        given = {"group": sql.SQL(_TEXT).format(sql.SQL(group)), "id": sql.SQL(_TEXT).format(sql.SQL(id_))}
        return [sql.SQL(one).format(**self._names, **given).as_string() for one in (_INSERT, _FIND)]

    def statements(self) -> list[sql.Composed]:
        """Return the statements that make the table, and its schema if there is none; running them again is safe."""
        return [create_schema(self.schema), *(statement.format(**self._names) for statement in split(_DDL))]

    def drop_statements(self) -> list[sql.Composed]:
        """Return the statement that drops the table: every message that comes again is then taken for new."""
        return [drop_tables(self.schema, (self.name,))]

    def consumer_grant(self, role: str) -> Grant:
        return Grant(self.schema, role, {self.name: ("SELECT", "INSERT")})
