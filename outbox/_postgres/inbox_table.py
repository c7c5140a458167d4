"""The inbox table in Postgres: which messages a consumer group has handled."""

from __future__ import annotations

from typing import LiteralString

from outbox._postgres.ddl import Grant, Tables, identifier, written
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
    _text = _DDL

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self._names = {"inbox": identifier(names.schema, names.inbox), "index": identifier(f"{names.inbox}_time")}

    @property
    def full_name(self) -> str:
        """Return schema and name, as SQL writes them."""
        return written(self.names.schema, self.names.inbox)

    @property
    def places(self) -> Places:
        return {Table.INBOX: (self.names.schema, self.names.inbox)}

    def once_statements(self, group: LiteralString, id_: LiteralString) -> list[str]:
        """Return what remembers a message, with a row if it is new, and what looks for it.

        Both take a driver's placeholders, for UTF-8 in hexadecimal.
        """
        given = {"group": _TEXT.format(group), "id": _TEXT.format(id_)}
        return [one.format(**self._names, **given) for one in (_INSERT, _FIND)]

    def consumer_grant(self, role: str) -> Grant:
        return Grant(self.names.schema, role, {self.names.inbox: ("SELECT", "INSERT")})
