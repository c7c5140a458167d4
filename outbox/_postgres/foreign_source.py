"""What the relay keeps beside a foreign table: its progress, and what it could not deliver. DDL and rights."""

from typing import LiteralString

from outbox._postgres.ddl import Grant, Tables, identifier, written
from outbox._postgres.table_contract import Places, Table
from outbox._rules.foreign_layout import QualifiedName
from outbox.settings import TableNames

# Apart from the tables of a message table of ours, so that neither changes for the other.
_DDL: LiteralString = """
CREATE TABLE IF NOT EXISTS {source} (
    id integer PRIMARY KEY CHECK (id = 0),
    name text NOT NULL,
    message_table text NOT NULL,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    batch bigint NOT NULL DEFAULT 0,
    nonce uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    delivered bigint NOT NULL DEFAULT 0,
    delivered_nonce uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    ids text[] NOT NULL DEFAULT '{{}}',
    halted text
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE {source} IS
    'The batch in delivery: its number, the ids of its rows. delivered: the last number known to be delivered.';
COMMENT ON COLUMN {source}.halted IS 'Why its owner stopped; NULL: it did not.';
CREATE TABLE IF NOT EXISTS {discarded} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    row_id text NOT NULL,
    content json,
    reason text NOT NULL,
    detail text NOT NULL,
    discarded_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE {discarded} IS
    'Rows that the relay could not deliver, with the reason. content: the row, if it was deleted from its table.';
CREATE INDEX IF NOT EXISTS {index} ON {discarded} (row_id);
CREATE INDEX IF NOT EXISTS {age_index} ON {discarded} (discarded_at);
"""


class ForeignSource(Tables):
    """DDL and rights of the tables that belong to a foreign table, with the schema and prefix of `names`."""

    _text = _DDL

    def __init__(self, names: TableNames, table: QualifiedName) -> None:
        names.check_foreign(*table)
        self.names = names
        self.table = table
        self._names = {
            "source": identifier(names.schema, names.source),
            "discarded": identifier(names.schema, names.discarded),
            "index": identifier(f"{names.discarded}_row"),
            "age_index": identifier(f"{names.discarded}_age"),
            "rows": "unnest(b.ids) AS r (id)",
            "transactions": "CAST('{}' AS text[])",
            "missing": "0",
            "lost": "false",
        }

    @property
    def full_name(self) -> str:
        """Return the foreign table's schema and name, as SQL writes them."""
        return written(*self.table)

    @property
    def full_source(self) -> str:
        """Return the source table's schema and name, as SQL writes them."""
        return written(self.names.schema, self.names.source)

    def relay_right(self, role: str, mark: str = "") -> str:
        """Return the options of `outbox table create` that give a relay what it needs; see `relay_grants()`."""
        marked = f" --mark-column {mark}" if mark else ""
        return f"--message-table {'.'.join(self.table)}{marked} --relay-role {written(role)}"

    @property
    def places(self) -> Places:
        names = self.names
        return {
            Table.FOREIGN: (self.table.schema, self.table.table),
            Table.FOREIGN_SOURCE: (names.schema, names.source),
            Table.FOREIGN_DISCARDED: (names.schema, names.discarded),
        }

    def drop_statements(self) -> list[str]:
        """Return the statement that drops both tables; the foreign table remains."""
        return [self.compose("DROP TABLE IF EXISTS {discarded}, {source}")]

    def viewer_grant(self, role: str) -> Grant:
        """Return what an operator needs who only looks. He cannot read rows."""
        rights = {self.names.discarded: ("SELECT (reason)",), self.names.source: ("SELECT",)}
        return Grant(self.names.schema, role, rights)

    def relay_grants(self, role: str, mark: str = "") -> list[Grant]:
        """Return what the relay needs, on the foreign table too; without a column to mark it deletes rows."""
        ours = {self.names.discarded: ("SELECT", "INSERT", "DELETE"), self.names.source: ("SELECT", "INSERT", "UPDATE")}
        settle = f"UPDATE ({identifier(mark)})" if mark else "DELETE"
        return [
            Grant(self.names.schema, role, ours),
            Grant(self.table.schema, role, {self.table.table: ("SELECT", settle)}),
        ]
