"""The message table of table mode: its DDL, its rights, and the function for other languages.

An application inserts one row for each message in its local transaction. The relay delivers committed rows and deletes
them. `xid` identifies the local transaction. It is the first column because defaults are evaluated in the order of the
columns: no row gets an id before its transaction has an xid.
"""

from typing import LiteralString

from psycopg import sql

from outbox._postgres.ddl import BOUNDS, Grant, Tables, create_schema, drop_tables, split, written
from outbox._postgres.notifications import notify_statements
from outbox._postgres.publish_function import STARTED_US, TRANSACTION_ID, publish_statement
from outbox._postgres.source_statements import COUNTED
from outbox._postgres.table_contract import CHECKS, Places, Table
from outbox.settings import TableNames

_KNOWN: LiteralString = (
    "coalesce(service, '') AS service, coalesce(topic, '') AS topic, coalesce(partition, -1) AS partition"
)
"""Where a message shall go. A table that was changed by hand may have NULL there; '' is no topic and no service."""

_DELETED: LiteralString = (
    "m.xid, m.created_at, m.id, coalesce(m.partition, -1) AS partition, m.service, m.topic, m.timestamp"
)
_EVIDENCE: LiteralString = (
    "evidence AS (INSERT INTO {delivered}"
    " (xid, created_at, first_id, batch, ids, partition, service, topic, earliest)"
    " SELECT xid, created_at, min(id), CAST(%(proven)s AS bigint), range_agg(int8range(id, id, '[]')), partition,"
    " service, topic, min(timestamp) FROM gone GROUP BY xid, created_at, partition, service, topic"
    " RETURNING ids), recorded AS (SELECT coalesce(sum(upper(run) - lower(run)), 0) AS recorded"
    " FROM evidence, unnest(ids) run)"
)
"""Inserts the evidence of the rows that `gone` has deleted (R61); `proven` is the number of the batch in Kafka.

`recorded` counts the rows that it has.
"""

_SAME: LiteralString = (
    "m.id = r.id AND m.xid = r.xid AND m.created_at = timestamptz 'epoch' + r.started * interval '1 microsecond'"
)
"""Whether a row is the one that is meant: an id may be given out again, and an xid, too (R72)."""

_TRANSACTIONS: LiteralString = (
    "ARRAY(SELECT DISTINCT CAST({transaction_id} AS text) FROM (SELECT xid, timestamptz 'epoch' +"
    " started * interval '1 microsecond' AS created_at FROM unnest(xids, starts) AS r (xid, started)) AS named)"
)
_MISSING: LiteralString = (
    "(SELECT count(*) FROM unnest(ids, xids, starts) AS r (id, xid, started)"
    " WHERE NOT EXISTS (SELECT FROM {message} AS m WHERE {same}))"
)
"""Of the rows that a row of the source table names: their transactions, and how many are not in the table."""

_LOST: LiteralString = "(highest = 0 AND EXISTS (SELECT FROM {delivered}))"
"""Whether rows left the message table of which the row of the source table has nothing."""

_LEFT: LiteralString = (
    "(SELECT xid, created_at, ids FROM {delivered}"
    " UNION ALL SELECT xid, created_at, int8multirange(int8range(id, id, '[]')) FROM {discarded})"
)
"""What has left the message table: a row of the same xid and id that is there has come back (R72)."""

_HEADER_BYTES: LiteralString = (
    "least(coalesce(pg_column_size(header_names)::bigint"
    " * CASE WHEN pg_column_compression(header_names) IS NULL THEN 1 ELSE 255 END, 0)"
    " + coalesce(pg_column_size(header_values)::bigint"
    " * CASE WHEN pg_column_compression(header_values) IS NULL THEN 1 ELSE 255 END, 0), 1000000)"
)
"""Bytes that a row's headers unpack to at most; to unpack them would cost the database more than to read the row."""

_DDL: LiteralString = """
CREATE TABLE IF NOT EXISTS {message} (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    service text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL DEFAULT -1,
    timestamp bigint,
    key bytea,
    value bytea,
    header_names text[],
    header_values bytea[],
    CHECK ({size}),
    CONSTRAINT {bounds_name} CHECK ({bounds})
) WITH ({storage}, {toast});
COMMENT ON TABLE {message} IS
    'One row per message that waits for its delivery. The relay deletes rows after their delivery. Never updated.';
CREATE INDEX IF NOT EXISTS {index} ON {message} (xid);
CREATE TABLE IF NOT EXISTS {discarded} (
    LIKE {message},
    reason text NOT NULL,
    detail text NOT NULL,
    discarded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (xid, created_at, id)
);
COMMENT ON TABLE {discarded} IS
    'Messages that the relay could not deliver, with the reason. A transaction is here whole, or not at all.';
CREATE INDEX IF NOT EXISTS {discarded_index} ON {discarded} USING hash (key);
CREATE TABLE IF NOT EXISTS {source} (
    id integer PRIMARY KEY CHECK (id = 0),
    name text NOT NULL,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    batch bigint NOT NULL DEFAULT 0,
    nonce uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    delivered bigint NOT NULL DEFAULT 0,
    delivered_nonce uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    ids bigint[] NOT NULL DEFAULT '{{}}',
    xids xid8[] NOT NULL DEFAULT '{{}}',
    starts bigint[] NOT NULL DEFAULT '{{}}',
    highest bigint NOT NULL DEFAULT 0,
    purged_until timestamptz,
    halted text,
    server bigint
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE {source} IS
    'The batch in delivery, and its rows by id, xid and created_at (us). delivered: the last known to be delivered.';
COMMENT ON COLUMN {source}.highest IS 'No higher id has ever left the message table.';
COMMENT ON COLUMN {source}.halted IS 'Why its owner stopped; NULL: it did not.';
COMMENT ON COLUMN {source}.server IS 'The system identifier of the server on which it was last taken over.';
CREATE TABLE IF NOT EXISTS {delivered} (
    xid xid8 NOT NULL,
    created_at timestamptz NOT NULL,
    first_id bigint NOT NULL,
    delivered_at timestamptz NOT NULL DEFAULT now(),
    batch bigint NOT NULL,
    ids int8multirange NOT NULL,
    partition integer NOT NULL,
    service text NOT NULL,
    topic text NOT NULL,
    earliest bigint,
    PRIMARY KEY (xid, created_at, first_id, delivered_at)
);
COMMENT ON TABLE {delivered} IS
    'Evidence of delivered messages: a row for each local transaction and topic. The relay purges it.';
CREATE INDEX IF NOT EXISTS {delivered_index} ON {delivered} (delivered_at);
"""

INSERT_RIGHT: LiteralString = "INSERT (service, topic, partition, timestamp, key, value, header_names, header_values)"

_EVIDENCE_RIGHT: LiteralString = "SELECT (xid, id, created_at, service, topic, partition, timestamp)"
_SELECT_RIGHT: LiteralString = "SELECT (id, xid, created_at)"
"""What an INSERT returns: neither services nor keys can be read."""
_PROOF_RIGHT: LiteralString = "SELECT (xid, created_at)"
"""What `outcome()` reads (R74)."""

# A queue: rows are inserted at one end and deleted at the other. Vacuum must come early and must not pause.
_STORAGE: LiteralString = (
    "autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,"
    " autovacuum_vacuum_insert_threshold = 100000, autovacuum_vacuum_insert_scale_factor = 0,"
    " autovacuum_analyze_threshold = 100000, autovacuum_analyze_scale_factor = 0"
)
_TOAST: LiteralString = (
    "toast.autovacuum_vacuum_threshold = 10000, toast.autovacuum_vacuum_scale_factor = 0,"
    " toast.autovacuum_vacuum_cost_delay = 0"
)


class MessageTable(Tables):
    """DDL and rights of the message table, and of what belongs to it."""

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self._names: dict[str, sql.Composable] = {
            "message": sql.Identifier(names.schema, names.message),
            "discarded": sql.Identifier(names.schema, names.discarded),
            "delivered": sql.Identifier(names.schema, names.delivered),
            "source": sql.Identifier(names.schema, names.source),
            "sequence": sql.Identifier(names.schema, names.message_sequence),
            "publish": sql.Identifier(names.schema, names.publish_function),
            "index": sql.Identifier(f"{names.message}_xid"),
            "discarded_index": sql.Identifier(f"{names.discarded}_key"),
            "delivered_index": sql.Identifier(f"{names.delivered}_at"),
            "quoted": sql.Literal(f'"{names.schema}"."{names.message}"'),
            "bounds_name": sql.Identifier(BOUNDS),
            "started": sql.SQL(STARTED_US),
            "header_bytes": sql.SQL(_HEADER_BYTES),
            "transaction_id": sql.SQL(TRANSACTION_ID),
            "known": sql.SQL(_KNOWN),
            "deleted": sql.SQL(_DELETED),
            "same": sql.SQL(_SAME),
            "counted": sql.SQL(COUNTED),
        }
        parts = {"evidence": _EVIDENCE, "transactions": _TRANSACTIONS, "missing": _MISSING}
        parts |= {"lost": _LOST, "left": _LEFT}
        self._names |= {name: sql.SQL(text).format(**self._names) for name, text in parts.items()}

    def compose(self, text: LiteralString) -> sql.Composed:
        """Return a statement with names in place of `{message}` and so on, and SQL of `{started}` and the like."""
        return sql.SQL(text).format(**self._names)

    @property
    def full_name(self) -> str:
        """Return the message table's schema and name, as SQL writes them."""
        return written(self.names.schema, self.names.message)

    @property
    def places(self) -> Places:
        names = self.names
        tables = {
            Table.MESSAGE: names.message,
            Table.DISCARDED: names.discarded,
            Table.DELIVERED: names.delivered,
            Table.SOURCE: names.source,
        }
        return {table: (names.schema, name) for table, name in tables.items()}

    def statements(self, *, notify: bool | None = None) -> list[sql.Composed]:
        """Return the statements that make all of it, and the schema if there is none; running them again is safe.

        Args:
            notify: Whether commits notify the relay: True or False creates or drops the trigger; None leaves it.
        """
        names, (size, bounds) = self.names, map(sql.SQL, CHECKS[Table.MESSAGE])
        texts = {"storage": sql.SQL(_STORAGE), "toast": sql.SQL(_TOAST), "size": size, "bounds": bounds}
        return [
            create_schema(names.schema),
            *(statement.format(**self._names, **texts) for statement in split(_DDL)),
            publish_statement((names.schema, names.publish_function), (names.schema, names.message)),
            *self._notify(notify=notify),
        ]

    def _notify(self, *, notify: bool | None) -> list[sql.Composed]:
        names = self.names
        table = sql.Identifier(names.schema, names.message)
        return notify_statements(table, sql.Identifier(names.schema, names.notify_function), notify=notify)

    def drop_statements(self) -> list[sql.Composed]:
        """Return the statements that drop all of it, and with it every message that waits."""
        names = self.names
        return [
            sql.SQL("DROP FUNCTION IF EXISTS {}").format(self._names["publish"]),
            *self._notify(notify=False),
            drop_tables(names.schema, (names.message, names.discarded, names.delivered, names.source)),
        ]

    def application_grant(self, role: str) -> Grant:
        """Return what an application needs to publish, and to learn the outcome of a transaction.

        It cannot read, change or delete messages, or choose their ids.
        """
        names = self.names
        return Grant(
            names.schema,
            role,
            {
                names.message: (INSERT_RIGHT, _SELECT_RIGHT),
                names.discarded: (_PROOF_RIGHT,),
                names.delivered: (_PROOF_RIGHT,),
                names.source: ("SELECT (id, purged_until)",),
            },
        )

    def relay_grant(self, role: str) -> Grant:
        names = self.names
        return Grant(
            names.schema,
            role,
            {
                names.message: ("SELECT", "DELETE"),
                names.message_sequence: ("SELECT",),
                names.discarded: ("SELECT", "INSERT"),
                names.delivered: ("SELECT", "INSERT", "DELETE"),
                names.source: ("SELECT", "INSERT", "UPDATE"),
            },
        )

    def checker_grant(self, role: str) -> Grant:
        """Return what `outbox audit` needs. It cannot read content of messages."""
        names = self.names
        return Grant(
            names.schema,
            role,
            {
                names.message: (_EVIDENCE_RIGHT,),
                names.discarded: (_EVIDENCE_RIGHT, "SELECT (reason)"),
                names.delivered: ("SELECT",),
                names.source: ("SELECT",),
            },
        )

    def operator_grant(self, role: str) -> Grant:
        """Return what an operator's commands need: all that the relay needs, and to move discarded messages back."""
        names, rights = self.names, dict(self.relay_grant(role).rights)
        rights[names.message] = (*rights[names.message], INSERT_RIGHT)
        rights[names.discarded] = (*rights[names.discarded], "DELETE")
        return Grant(names.schema, role, rights)
