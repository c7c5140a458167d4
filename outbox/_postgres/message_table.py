"""The message table of table mode: its DDL, its rights, and the function for other languages.

An application inserts one row for each message in its local transaction. The relay delivers committed rows and deletes
them. `xid` identifies the local transaction. It is the first column because defaults are evaluated in the order of the
columns: no row gets an id before its transaction has an xid.

It has no CHECK, which would cost an INSERT as much as all else. A row may hold anything that its types can: what is
beyond the bounds of a message is not read, but moved to the dead letters by Postgres itself (R68). Messages that
wait for their time have one: such a row would be copied twice, and hold up others meanwhile.
"""

from typing import LiteralString

from outbox._postgres.ddl import Grant, Rights, Tables, identifier, written
from outbox._postgres.publish_function import AGE, START, STARTED_US, TRANSACTION_ID, publish_statement
from outbox._postgres.source_statements import COUNTED
from outbox._postgres.table_contract import BOUNDS, Places, Table
from outbox.settings import TableNames

_KNOWN: LiteralString = (
    "coalesce(left(service, 200), '') AS service, coalesce(left(topic, 249), '') AS topic,"
    " coalesce(partition, -1) AS partition"
)
"""Where a message shall go: names as long as they can be, of which Postgres unpacks no more.

A table that was changed by hand may have NULL there; '' is no topic and no service.
"""

_ROWS: LiteralString = (
    "unnest(ARRAY(SELECT generate_series(lower(run), upper(run) - 1) FROM unnest(b.ids) AS run), b.xids, b.starts,"
    " b.targets) AS r (id, xid, created_at, target)"
)
"""The rows of a batch `b`, which is named or was delivered. No target: the first one, which is that of all rows."""

_BATCH: LiteralString = "ids, xids, starts, xid_range, targets, services, topics, partitions, earliest"
"""What is kept of the rows of a batch."""
_NAMED: LiteralString = (
    "(CAST(%(ids)s AS int8multirange), CAST(%(xids)s AS xid8[]), CAST(%(starts)s AS timestamptz[]),"
    " CAST(%(xid_range)s AS int8range), CAST(%(targets)s AS integer[]), CAST(%(services)s AS text[]),"
    " CAST(%(topics)s AS text[]), CAST(%(partitions)s AS integer[]), CAST(%(earliest)s AS bigint[]))"
)
"""The same of the next batch."""

_EVIDENCE: LiteralString = (
    "evidence AS (INSERT INTO {delivered} (first_id, batch, {batch}) SELECT first_id, CAST(%(proven)s AS bigint),"
    " {batch} FROM settled WHERE ids <> '{{}}' RETURNING cardinality(xids) AS rows),"
    " recorded AS (SELECT coalesce(sum(rows), 0) AS recorded FROM evidence)"
)
"""Inserts the evidence of the rows that `gone` deletes, which are those of `settled` (R61).

`proven` is the number of the batch in Kafka. `recorded` counts the rows that have evidence.
"""

_GONE: LiteralString = (
    "runs AS MATERIALIZED (SELECT first_id, lower(run) AS low, upper(run) AS high, CAST(sum(upper(run) - lower(run))"
    " OVER (PARTITION BY first_id ORDER BY lower(run)) AS bigint) - upper(run) + 1 AS shift"
    " FROM settled, unnest(ids) AS run),"
    " gone AS (DELETE FROM {message} WHERE ctid = ANY (ARRAY(SELECT found.ctid"
    " FROM moved, settled AS b JOIN runs USING (first_id),"
    " LATERAL (SELECT m.ctid FROM {message} AS m WHERE m.id >= low AND m.id < high"
    " AND m.xid = b.xids[m.id + shift] AND m.created_at = b.starts[m.id + shift] OFFSET 0) AS found)) RETURNING 1)"
)
"""Deletes the rows of the batch in `settled`, if `moved` has a row. Each is found by its id and place in the batch.

OFFSET keeps the order: Postgres looks each run of ids up in the table, whatever it takes the table's size for.
"""

_SAME: LiteralString = (
    f"m.id = r.id AND m.xid = r.xid AND {START} = timestamptz 'epoch' + r.started * interval '1 microsecond'"
)
"""Whether a row is the one that is meant: an id may be given out again, and an xid, too (R72)."""

_TRANSACTIONS: LiteralString = "ARRAY(SELECT DISTINCT CAST({transaction_id} AS text) FROM {rows})"
_MISSING: LiteralString = (
    "(SELECT count(*) FROM {rows} WHERE NOT EXISTS"
    " (SELECT FROM {message} AS m WHERE m.id = r.id AND m.xid = r.xid AND m.created_at = r.created_at))"
)
"""Of the rows that a row of the source table names: their transactions, and how many are not in the table."""

_LOST: LiteralString = "(highest = 0 AND EXISTS (SELECT FROM {delivered}))"
"""Whether rows left the message table of which the row of the source table has nothing."""

_LEFT: LiteralString = (
    "(SELECT r.created_at FROM {delivered} AS b, {rows} WHERE b.xid_range @> CAST(CAST(m.xid AS text) AS bigint)"
    " AND b.ids @> m.id AND r.id = m.id AND r.xid = m.xid"
    " UNION ALL SELECT d.created_at FROM {discarded} AS d WHERE d.xid = m.xid AND d.id = m.id)"
)
"""Starts of what has left the message table with the xid and id of the row `m`, which has come back then (R72)."""

_BYTES: LiteralString = (
    "CAST(least(CAST(300 AS bigint) + coalesce(octet_length(value), 0)"
    " + coalesce(octet_length(key), 0) + coalesce(octet_length(topic), 0) + coalesce(octet_length(service), 0)"
    " + CASE WHEN pg_column_compression(header_names) IS NULL THEN coalesce(pg_column_size(header_names), 0)"
    " ELSE least(pg_column_size(header_names), 4000) * 255 END"
    " + CASE WHEN pg_column_compression(header_values) IS NULL THEN coalesce(pg_column_size(header_values), 0)"
    " ELSE least(pg_column_size(header_values), 4000) * 255 END, 1000000000) AS integer)"
)
"""Bytes that a row takes in memory at most, up to 1 GB. To unpack its headers would cost more than to read it."""

# An array may be kept compressed, and pg_column_size() alone counts it so. array_cat() unpacks it.
_BOUNDED: LiteralString = (
    f"coalesce(octet_length(service), 0) <= 200 AND coalesce(octet_length(topic), 0) <= 249 AND created_at = {START}"
    " AND (size <= 1000000 OR coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) <= 64000000"
    " AND coalesce(pg_column_size(header_names), 0) + coalesce(pg_column_size(header_values), 0) <= 1000000"
    " AND pg_column_size(array_cat(header_names, '{{}}')) + pg_column_size(array_cat(header_values, '{{}}'))"
    " <= 1000000)"
)
"""Whether a row, of `size` bytes as above, can be a message; `publish()` refuses what would be none (R68)."""

_COLUMNS: LiteralString = """service text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL DEFAULT -1,
    timestamp bigint,
    key bytea,
    value bytea,
    header_names text[],
    header_values bytea[]"""

_DDL: LiteralString = """
CREATE TABLE IF NOT EXISTS {message} (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    {content}
) WITH ({storage}, {toast});
COMMENT ON TABLE {message} IS
    'One row per message that waits for its delivery. The relay deletes rows after their delivery. Never updated.';
CREATE INDEX IF NOT EXISTS {index} ON {message} (xid);
CREATE TABLE IF NOT EXISTS {scheduled} (
    id bigint GENERATED ALWAYS AS IDENTITY (INCREMENT -1) PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at timestamptz NOT NULL DEFAULT now(),
    not_before timestamptz NOT NULL,
    {content},
    CONSTRAINT outbox_bounds CHECK ({bounds})
);
COMMENT ON TABLE {scheduled} IS
    'One row per message that waits for its time. The relay then moves it into the message table.';
CREATE INDEX IF NOT EXISTS {scheduled_index} ON {scheduled} (not_before, id DESC);
CREATE INDEX IF NOT EXISTS {scheduled_part} ON {scheduled} (not_before, xid);
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
CREATE INDEX IF NOT EXISTS {discarded_age} ON {discarded} (discarded_at);
CREATE TABLE IF NOT EXISTS {source} (
    id integer PRIMARY KEY CHECK (id = 0),
    name text NOT NULL,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    batch bigint NOT NULL DEFAULT 0,
    nonce uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    delivered bigint NOT NULL DEFAULT 0,
    delivered_nonce uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    ids int8multirange NOT NULL DEFAULT '{{}}',
    xids xid8[] NOT NULL DEFAULT '{{}}',
    starts timestamptz[] NOT NULL DEFAULT '{{}}',
    xid_range int8range NOT NULL DEFAULT 'empty',
    targets integer[] NOT NULL DEFAULT '{{}}',
    services text[] NOT NULL DEFAULT '{{}}',
    topics text[] NOT NULL DEFAULT '{{}}',
    partitions integer[] NOT NULL DEFAULT '{{}}',
    earliest bigint[] NOT NULL DEFAULT '{{}}',
    highest bigint NOT NULL DEFAULT 0,
    erasures bigint NOT NULL DEFAULT 0,
    purged_until timestamptz,
    halted text,
    server bigint
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE {source} IS
    'The batch in delivery, and its rows as in {delivered}. delivered: the last batch known to be delivered.';
COMMENT ON COLUMN {source}.highest IS 'No higher id has ever left the message table.';
COMMENT ON COLUMN {source}.erasures IS 'How often an operator has erased rows.';
COMMENT ON COLUMN {source}.halted IS 'Why its owner stopped; NULL: it did not.';
COMMENT ON COLUMN {source}.server IS 'The system identifier of the server on which it was last taken over.';
CREATE TABLE IF NOT EXISTS {delivered} (
    delivered_at timestamptz NOT NULL DEFAULT now(),
    batch bigint NOT NULL,
    first_id bigint NOT NULL,
    ids int8multirange NOT NULL,
    xids xid8[] NOT NULL,
    starts timestamptz[] NOT NULL,
    xid_range int8range NOT NULL,
    targets integer[] NOT NULL,
    services text[] NOT NULL,
    topics text[] NOT NULL,
    partitions integer[] NOT NULL,
    earliest bigint[] NOT NULL,
    successor uuid,
    PRIMARY KEY (delivered_at, batch, first_id)
);
COMMENT ON TABLE {delivered} IS
    'Evidence of delivered messages: a row for each batch. The relay purges it.';
COMMENT ON COLUMN {delivered}.xids IS 'Of each row, in the order of the ids, as are starts (created_at) and targets.';
COMMENT ON COLUMN {delivered}.xid_range IS 'From the lowest xid to the highest.';
COMMENT ON COLUMN {delivered}.targets IS
    'Of each row, its place in services, topics, partitions and earliest (of the timestamps there); {{}}: 1.';
COMMENT ON COLUMN {delivered}.successor IS 'The transaction as which an operator had discarded rows delivered again.';
ALTER TABLE {source} {uncompressed};
ALTER TABLE {delivered} {uncompressed};
CREATE INDEX IF NOT EXISTS {delivered_index} ON {delivered} USING gist (xid_range);
"""

# To compress them would cost more than to write them.
_UNCOMPRESSED: LiteralString = (
    "ALTER xids SET STORAGE EXTERNAL, ALTER starts SET STORAGE EXTERNAL, ALTER targets SET STORAGE EXTERNAL"
)

_CONTENT: LiteralString = "service, topic, partition, timestamp, key, value, header_names, header_values"
_ROW: LiteralString = f"xid, id, created_at, {_CONTENT}"
"""All columns but those that an application has added: one that is computed when it is read may fail."""
INSERT_RIGHT: LiteralString = f"INSERT ({_CONTENT})"
_SCHEDULE_RIGHT: LiteralString = f"INSERT (not_before, {_CONTENT})"

_EVIDENCE_RIGHT: LiteralString = "SELECT (xid, id, created_at, service, topic, partition, timestamp)"
_VIEW_RIGHT: LiteralString = "SELECT (xid, id, created_at, service, topic, partition, timestamp, key)"
_SELECT_RIGHT: LiteralString = "SELECT (id, xid, created_at)"
"""What an INSERT returns: neither services nor keys can be read."""
_PROOF_RIGHT: LiteralString = "SELECT (xid, created_at)"
_DELIVERED_RIGHT: LiteralString = "SELECT (xid_range, xids, starts)"
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

    _text = _DDL

    def __init__(self, names: TableNames) -> None:
        self.names = names
        self._names = {
            "message": identifier(names.schema, names.message),
            "scheduled": identifier(names.schema, names.scheduled),
            "discarded": identifier(names.schema, names.discarded),
            "delivered": identifier(names.schema, names.delivered),
            "source": identifier(names.schema, names.source),
            "sequence": identifier(names.schema, names.message_sequence),
            "publish": identifier(names.schema, names.publish_function),
            "index": identifier(f"{names.message}_xid"),
            "scheduled_index": identifier(f"{names.scheduled}_time"),
            "scheduled_part": identifier(f"{names.scheduled}_part"),
            "discarded_index": identifier(f"{names.discarded}_key"),
            "discarded_age": identifier(f"{names.discarded}_age"),
            "delivered_index": identifier(f"{names.delivered}_xid"),
            "start": START,
            "started": STARTED_US.replace("created_at", START),
            "age": AGE,
            "bytes": _BYTES,
            "bounded": _BOUNDED.format(),
            "transaction_id": TRANSACTION_ID.replace("created_at", START),
            "known": _KNOWN,
            "rows": _ROWS,
            "batch": _BATCH,
            "named": _NAMED,
            "same": _SAME,
            "counted": COUNTED,
            "content": _COLUMNS,
            "row": _ROW,
            **{f"{one}_row": f"{one}.{_ROW.replace(', ', f', {one}.')}" for one in "ms"},
            "storage": _STORAGE,
            "toast": _TOAST,
            "uncompressed": _UNCOMPRESSED,
            "bounds": BOUNDS[Table.SCHEDULED],
        }
        parts = {"evidence": _EVIDENCE, "gone": _GONE, "transactions": _TRANSACTIONS, "missing": _MISSING}
        parts |= {"lost": _LOST, "left": _LEFT}
        self._names |= {name: self.compose(text) for name, text in parts.items()}

    @property
    def full_name(self) -> str:
        """Return the message table's schema and name, as SQL writes them."""
        return written(self.names.schema, self.names.message)

    @property
    def places(self) -> Places:
        names = self.names
        tables = {
            Table.MESSAGE: names.message,
            Table.SCHEDULED: names.scheduled,
            Table.DISCARDED: names.discarded,
            Table.DELIVERED: names.delivered,
            Table.SOURCE: names.source,
        }
        return {table: (names.schema, name) for table, name in tables.items()}

    def statements(self) -> list[str]:
        """Return also the one that makes the function."""
        return [*super().statements(), publish_statement(self.names)]

    def drop_statements(self) -> list[str]:
        """Return also the one that drops the function."""
        return [self.compose("DROP FUNCTION IF EXISTS {publish}"), *super().drop_statements()]

    def application_grant(self, role: str) -> Grant:
        """Return what an application needs to publish, and to learn the outcome of a transaction.

        It cannot read or change messages, choose their ids, or delete others than those that wait for their time.
        """
        names = self.names
        rights: Rights = {
            names.message: (INSERT_RIGHT, _SELECT_RIGHT),
            names.scheduled: (_SCHEDULE_RIGHT, "SELECT (id, xid, created_at, not_before)", "DELETE"),
            names.discarded: (_PROOF_RIGHT,),
            names.delivered: (_DELIVERED_RIGHT,),
            names.source: ("SELECT (id, purged_until)",),
        }
        return Grant(names.schema, role, rights)

    def relay_grant(self, role: str) -> Grant:
        """Return what the relay needs, and an operator's commands, too."""
        names = self.names
        rights: Rights = {
            names.message: ("SELECT", "INSERT", "DELETE"),
            names.scheduled: ("SELECT", "UPDATE", "DELETE"),  # UPDATE: it locks rows
            names.message_sequence: ("SELECT",),
            names.discarded: ("SELECT", "INSERT", "DELETE"),
            names.delivered: ("SELECT", "INSERT", "DELETE"),
            names.source: ("SELECT", "INSERT", "UPDATE"),
        }
        return Grant(names.schema, role, rights)

    def viewer_grant(self, role: str) -> Grant:
        """Return what an operator needs who only looks. He cannot read values and headers of messages."""
        names = self.names
        rights: Rights = {
            names.message: (_VIEW_RIGHT,),
            names.scheduled: (_VIEW_RIGHT, "SELECT (not_before)"),
            names.discarded: (_VIEW_RIGHT, "SELECT (reason, detail, discarded_at)"),
            names.delivered: ("SELECT",),
            names.source: ("SELECT",),
        }
        return Grant(names.schema, role, rights)

    def checker_grant(self, role: str) -> Grant:
        """Return what `outbox audit` needs. It cannot read content of messages."""
        names = self.names
        rights: Rights = {
            names.message: (_EVIDENCE_RIGHT,),
            names.discarded: (_EVIDENCE_RIGHT, "SELECT (reason)"),
            names.delivered: ("SELECT",),
            names.source: ("SELECT",),
        }
        return Grant(names.schema, role, rights)
