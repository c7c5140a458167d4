"""The contract of the tables in Postgres (R75): what each must be, what goes wrong otherwise, and what to do.

`outbox table create`, relay, checker, `outbox doctor` and the documentation are made of this one list.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from outbox._postgres.ddl import may_use_schema, written
from outbox.errors import TableError


class Table(enum.StrEnum):
    """A kind of table."""

    CALLBACK = "callback table"
    META = "meta table"
    FENCE = "fence table"
    MESSAGE = "message table"
    DISCARDED = "discarded messages"
    DELIVERED = "evidence of deliveries"
    SOURCE = "progress of the relay"
    INBOX = "inbox"
    FOREIGN = "foreign table"
    FOREIGN_SOURCE = "progress beside a foreign table"
    FOREIGN_DISCARDED = "discarded rows of a foreign table"


Places = Mapping[Table, tuple[str, str]]
"""Schema and name of the tables that are looked at."""

_MESSAGE = (
    "xid xid8!, id bigint!, created_at timestamptz!, service text!, topic text!, partition integer!,"
    " timestamp bigint, key bytea, value bytea, header_names text[], header_values bytea[]"
)
_COLUMNS: Mapping[Table, str] = {
    Table.CALLBACK: "transaction_id uuid!, service text!, state character(1)!, channel text!,"
    " half_topic_id uuid!, half_partition integer!, first_offset bigint!, last_offset bigint!, positions text!,"
    " created_at timestamptz!",
    Table.META: "key text!, value text!",
    Table.FENCE: "id integer!, written_at timestamptz!",
    Table.MESSAGE: _MESSAGE,
    Table.DISCARDED: f"{_MESSAGE}, reason text!, detail text!, discarded_at timestamptz!",
    Table.DELIVERED: "xid xid8!, created_at timestamptz!, first_id bigint!, delivered_at timestamptz!, batch bigint!,"
    " ids int8multirange!, partition integer!, service text!, topic text!, earliest bigint",
    Table.SOURCE: "id integer!, name text!, incarnation uuid!, batch bigint!, nonce uuid!, delivered bigint!,"
    " delivered_nonce uuid!, ids bigint[]!, xids xid8[]!, starts bigint[]!, highest bigint!, purged_until timestamptz",
    Table.INBOX: "consumer_group text!, message_id text!, received_at timestamptz!",
    Table.FOREIGN_SOURCE: "id integer!, name text!, message_table text!, incarnation uuid!, batch bigint!,"
    " nonce uuid!, delivered bigint!, delivered_nonce uuid!, ids text[]!",
    Table.FOREIGN_DISCARDED: "id bigint!, row_id text!, content json, reason text!, detail text!,"
    " discarded_at timestamptz!",
}
"""Columns with their types; `!` is NOT NULL."""

_KEYS: Mapping[Table, tuple[str, ...]] = {
    Table.CALLBACK: ("transaction_id",),
    Table.META: ("key",),
    Table.FENCE: ("id",),
    Table.SOURCE: ("id",),
    Table.INBOX: ("consumer_group", "message_id"),
    Table.FOREIGN_SOURCE: ("id",),
}
"""Primary keys that are read as they are: each row is found by one, or ON CONFLICT names it."""

_FACTS: LiteralString = """
SELECT c.oid IS NOT NULL, coalesce(c.relkind::text, ''), coalesce(pg_get_partkeydef(c.oid), ''),
       EXISTS (SELECT FROM pg_inherits i
                WHERE i.inhrelid = c.oid OR (i.inhparent = c.oid AND c.relkind <> 'p')),
       NOT EXISTS (SELECT FROM pg_class p WHERE p.oid = ANY (part.oids) AND p.relpersistence <> 'p'),
       ARRAY(SELECT DISTINCT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = ANY (part.oids)
                AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgname <> 'outbox_notify' ORDER BY 1),
       ARRAY(SELECT DISTINCT r.rulename::text FROM pg_rewrite r WHERE r.ev_class = ANY (part.oids)
                AND r.ev_enabled <> 'D' ORDER BY 1),
       coalesce(row_security_active(c.oid), false),
       coalesce(key.columns, '{}'), coalesce(key.is_immediate, false),
       ARRAY(SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN '!' ELSE ''
                END FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       coalesce(serial.is_fine, false), serial.schema, serial.name
  FROM unnest(CAST(%s AS text[])) WITH ORDINALITY AS given (place, number)
  LEFT JOIN pg_class c ON c.oid = to_regclass(given.place)
  LEFT JOIN LATERAL (SELECT CASE c.relkind WHEN 'p' THEN ARRAY(SELECT relid::oid FROM pg_partition_tree(c.oid))
                                 ELSE ARRAY[c.oid] END AS oids) AS part ON true
  LEFT JOIN LATERAL (SELECT array_agg(a.attname::text ORDER BY k.place) AS columns,
                            bool_and(i.indimmediate AND i.indisvalid) AS is_immediate
                       FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
                      WHERE i.indrelid = c.oid AND i.indisprimary) AS key ON true
  LEFT JOIN LATERAL (SELECT s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle AS is_fine,
                            n.nspname::text AS schema, q.relname::text AS name
                       FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
                       JOIN pg_class q ON q.oid = d.objid JOIN pg_namespace n ON n.oid = q.relnamespace
                       JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                      WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
                        AND d.refobjid = c.oid AND d.deptype IN ('a', 'i') AND a.attname = 'id') AS serial ON true
 ORDER BY given.number
"""
_RESTARTED: LiteralString = (
    "SELECT coalesce(max(id), 0) > (SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM {sequence})"
    " FROM {table}"
)
_MAY_READ: LiteralString = "SELECT has_table_privilege(%s, 'SELECT') AND has_table_privilege(%s, 'SELECT')"


class Facts(NamedTuple):
    """What the catalogue has of a table."""

    exists: bool
    kind: str
    partition_key: str
    is_relative: bool
    is_logged: bool
    triggers: Sequence[str]
    rules: Sequence[str]
    is_secured: bool
    key: Sequence[str]
    is_immediate: bool
    columns: Sequence[str]
    has_sequence: bool
    sequence_schema: str | None
    sequence: str | None
    is_restarted: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Args:
        broken: Returns what a table is or has instead; empty if it fulfils the condition.
        fix: What to do; `{table}` is the table.
    """

    name: str
    tables: frozenset[Table]
    broken: Callable[[Facts, Table], str]
    harm: str
    fix: str


class Breach(NamedTuple):
    """A broken condition."""

    what: str
    harm: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.harm}; {self.fix}"


_ALL = frozenset(Table)
_OURS = _ALL - {Table.FOREIGN}


def _is_no_table(facts: Facts, table: Table) -> str:
    by_hash = facts.kind == "p" and facts.partition_key == "HASH (transaction_id)"
    fine = facts.kind == "r" or {Table.FOREIGN: facts.kind == "p", Table.CALLBACK: by_hash}.get(table, False)
    return "" if fine else "is not an ordinary table"


def _lacks(facts: Facts, table: Table) -> str:
    wanted = [column.replace("timestamptz", "timestamp with time zone") for column in _COLUMNS[table].split(", ")]
    found = {*facts.columns, *(column.removesuffix("!") for column in facts.columns)}
    missing = ", ".join(column.replace("!", " NOT NULL") for column in sorted(wanted) if column not in found)
    return missing and f"lacks the columns {missing}"


def _has_another_key(facts: Facts, table: Table) -> str:
    key = ", ".join(_KEYS.get(table, ()))
    if not facts.key or (key and ", ".join(facts.key) != key):
        return f"needs the primary key ({key})" if key else "has no primary key"
    return "" if facts.is_immediate else "has a deferrable primary key"


CONTRACT = (
    Condition(
        "it exists",
        _ALL,
        lambda facts, _: "" if facts.exists else "does not exist",
        "nothing can be written or delivered",
        "run `outbox table create`, or the SQL of its `--print-sql`; `outbox inbox create` makes an inbox",
    ),
    Condition(
        "an ordinary table; a callback table may be hash-partitioned by transaction_id, a foreign table in any way",
        _ALL,
        _is_no_table,
        "its rows are not unique, or not its own",
        "make it one, as `outbox table create --print-sql` does",
    ),
    Condition(
        "no parents and no children",
        _ALL,
        lambda facts, _: "has parent or child tables" if facts.is_relative else "",
        "rows of other tables would be taken for its own",
        "remove them: ALTER TABLE … NO INHERIT, or DETACH PARTITION",
    ),
    Condition(
        "logged",
        _ALL,
        lambda facts, _: "" if facts.is_logged else "is not logged",
        "a crash would empty it",
        "run ALTER TABLE {table} SET LOGGED",
    ),
    Condition(
        "its columns, with their types and NOT NULL",
        _OURS,
        _lacks,
        "rows could not be read or written",
        "run `outbox table create`, which adds new columns; compare the others with `outbox table create --print-sql`",
    ),
    Condition(
        "its primary key, not deferrable",
        _OURS,
        _has_another_key,
        "a row could be there twice, and a fence would be void",
        "make it as `outbox table create --print-sql` does, NOT DEFERRABLE",
    ),
    Condition(
        "no trigger but `outbox_notify`",
        _OURS,
        lambda facts, _: f"has triggers: {', '.join(facts.triggers)}" if facts.triggers else "",
        "they could change a decision, keep rows that were delivered, or add and drop messages",
        "drop or disable them; triggers of your own belong on your own tables",
    ),
    Condition(
        "no rule",
        _OURS,
        lambda facts, _: f"has rules: {', '.join(facts.rules)}" if facts.rules else "",
        "statements would do something else than is written",
        "drop them",
    ),
    Condition(
        "no row security for the role",
        _ALL,
        lambda facts, _: "has row security" if facts.is_secured else "",
        "rows that are hidden would never be delivered, or be delivered for ever",
        "run ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS",
    ),
    Condition(
        "ids from a sequence that ascends, without a cache or a cycle",
        frozenset({Table.MESSAGE}),
        lambda facts, _: "" if facts.has_sequence else "has another sequence of ids",
        "messages of one key would not be in the order of the changes",
        "run ALTER TABLE {table} ALTER COLUMN id SET CACHE 1 SET INCREMENT 1 SET NO CYCLE",
    ),
    Condition(
        "no id above the last value of its sequence",
        frozenset({Table.MESSAGE}),
        lambda facts, _: "has ids above the last value of their sequence" if facts.is_restarted else "",
        "ids have started again, so new messages would overtake those that wait",
        "stop the writers, then run SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table}",
    ),
)


def exists(connection: psycopg.Connection[Any], place: tuple[str, str]) -> bool:
    """Return whether there is a table of a schema and a name."""
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", (_quoted(place),)).fetchone() == (True,)


def breaches(connection: psycopg.Connection[Any], places: Places) -> list[Breach]:
    """Return which conditions tables break, for the role of the connection.

    Args:
        connection: In autocommit, or in a transaction of its own.
    """
    for schema in sorted({schema for schema, _ in places.values()}):
        if not may_use_schema(connection, schema):
            name, user = written(schema), written(connection.info.user)
            problem = f"role {user} may not use schema {name}"
            return [Breach(problem, "its tables cannot be read", f"GRANT USAGE ON SCHEMA {name} TO {user}")]
    rows = connection.execute(_FACTS, ([_quoted(place) for place in places.values()],)).fetchall()
    found = zip(places.items(), (Facts(*row) for row in rows), strict=True)
    return [breach for (table, place), facts in found for breach in _breaches(connection, table, place, facts)]


def require_contract(connection: psycopg.Connection[Any], places: Places) -> None:
    if found := breaches(connection, places):
        raise TableError("; ".join(map(str, found)))


def _breaches(
    connection: psycopg.Connection[Any], table: Table, place: tuple[str, str], facts: Facts
) -> Iterator[Breach]:
    if table is Table.MESSAGE and facts.sequence is not None and not facts.is_secured:
        facts = facts._replace(is_restarted=_is_restarted(connection, place, facts))
    for condition in CONTRACT:
        if table in condition.tables and (problem := condition.broken(facts, table)):
            name = written(*place)
            yield Breach(f"table {name} {problem}", condition.harm, condition.fix.format(table=name))
            if not facts.exists:
                return


def _is_restarted(connection: psycopg.Connection[Any], place: tuple[str, str], facts: Facts) -> bool:
    """Return whether ids are above their sequence; not for a role that may not read it, which delivers nothing."""
    sequence = (str(facts.sequence_schema), str(facts.sequence))
    if connection.execute(_MAY_READ, (_quoted(place), _quoted(sequence))).fetchone() != (True,):
        return False
    statement = sql.SQL(_RESTARTED).format(sequence=sql.Identifier(*sequence), table=sql.Identifier(*place))
    return connection.execute(statement).fetchone() == (True,)


def _quoted(place: tuple[str, str]) -> str:
    return sql.Identifier(*place).as_string()
