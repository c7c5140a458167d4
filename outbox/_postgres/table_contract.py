"""The contract of the tables in Postgres (R75): what each must be, what goes wrong otherwise, and what to do.

`outbox table create`, relay, checker, `outbox doctor` and the documentation are made of this one list.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from outbox._postgres.ddl import identifier, may_use_schema, written
from outbox._postgres.publish_function import is_altered
from outbox.errors import TableError
from outbox.settings import TableNames

if TYPE_CHECKING:  # as in `ddl`
    import psycopg


class Table(enum.StrEnum):
    """A kind of table."""

    CALLBACK = "callback table"
    META = "meta table"
    FENCE = "fence table"
    MESSAGE = "message table"
    SCHEDULED = "messages that wait for their time"
    DISCARDED = "discarded messages"
    DELIVERED = "evidence of deliveries"
    SOURCE = "progress of the relay"
    STAGED = "staged rows of Spark"
    SINK = "batches of Spark"
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
_CONTENT = _MESSAGE.partition("created_at timestamptz!, ")[2]
_NO_NONCE = "00000000-0000-0000-0000-000000000000"
_BATCHES = (
    f"incarnation uuid! = gen_random_uuid(), batch bigint! = 0, nonce uuid! = {_NO_NONCE},"
    f" delivered bigint! = 0, delivered_nonce uuid! = {_NO_NONCE}"
)
_ROWS = (
    "ids int8multirange! = {}, xids xid8[]! = {}, starts timestamptz[]! = {}, xid_range int8range! = empty,"
    " targets integer[]! = {}, services text[]! = {}, topics text[]! = {}, partitions integer[]! = {},"
    " earliest bigint[]! = {}"
)
_COLUMNS: Mapping[Table, str] = {
    Table.CALLBACK: "transaction_id uuid!, service text!, state character(1)!, channel text!,"
    " half_topic_id uuid!, half_partition integer!, first_offset bigint!, last_offset bigint!, positions text!,"
    " created_at timestamptz! = now()",
    Table.META: "key text!, value text!",
    Table.FENCE: "id integer!, written_at timestamptz!",
    Table.MESSAGE: _MESSAGE.replace("xid xid8!", "xid xid8! = pg_current_xact_id()")
    .replace("id bigint!", "id bigint! = ALWAYS AS IDENTITY")
    .replace("created_at timestamptz!", "created_at timestamptz! = now()")
    .replace("partition integer!", "partition integer! = -1"),
    Table.SCHEDULED: "id bigint! = ALWAYS AS IDENTITY, xid xid8! = pg_current_xact_id(),"
    " created_at timestamptz! = now(), not_before timestamptz!, "
    + _CONTENT.replace("partition integer!", "partition integer! = -1"),
    Table.DISCARDED: f"{_MESSAGE}, reason text!, detail text!, discarded_at timestamptz! = now()",
    Table.DELIVERED: "delivered_at timestamptz! = now(), batch bigint!, first_id bigint!, "
    + _ROWS.replace(" = {}", "").replace(" = empty", "")
    + ", successor uuid",
    Table.SOURCE: f"id integer!, name text!, {_BATCHES}, {_ROWS}, highest bigint! = 0, erasures bigint! = 0,"
    " purged_until timestamptz, halted text, server bigint",
    Table.STAGED: "attempt uuid! = current_setting(outbox.attempt), id bigint! = ALWAYS AS IDENTITY,"
    f" staged_at timestamptz! = now(), {_CONTENT}, part bytea",
    Table.SINK: "query text!, checkpoint text!, batch bigint!, rows bigint!, checksum bigint!,"
    " committed_at timestamptz! = now()",
    Table.INBOX: "consumer_group text!, message_id text!, received_at timestamptz! = now()",
    Table.FOREIGN_SOURCE: f"id integer!, name text!, message_table text!, {_BATCHES}, ids text[]! = {{}}, halted text",
    Table.FOREIGN_DISCARDED: "id bigint! = ALWAYS AS IDENTITY, row_id text!, content json, reason text!, detail text!,"
    " discarded_at timestamptz! = now()",
}
"""Columns with their types; `!` is NOT NULL, and what follows `=` is what a row gets that leaves the column out."""

_KEYS: Mapping[Table, str] = {
    Table.CALLBACK: "transaction_id",
    Table.META: "key",
    Table.FENCE: "id",
    Table.MESSAGE: "id",
    Table.SCHEDULED: "id",
    Table.DISCARDED: "xid, created_at, id",
    Table.DELIVERED: "delivered_at, batch, first_id",
    Table.SOURCE: "id",
    Table.STAGED: "attempt, id",
    Table.SINK: "query",
    Table.INBOX: "consumer_group, message_id",
    Table.FOREIGN_SOURCE: "id",
    Table.FOREIGN_DISCARDED: "id",
}
"""Primary keys."""

# The longest positions are 5,000 numbers of four digits. The times are those of Python's calendar, in any time zone.
_TIME: LiteralString = "created_at >= '1970-01-01 00:00:00+00' AND created_at < '9999-01-01 00:00:00+00'"
BOUNDS: Mapping[Table, LiteralString] = {
    Table.CALLBACK: (
        "octet_length(service) <= 200 AND octet_length(channel) <= 249 AND octet_length(positions) <= 25000"
        f" AND {_TIME}"
    ),
    # An array may be kept compressed, and pg_column_size() alone counts it so. array_cat() unpacks it.
    Table.SCHEDULED: (
        "octet_length(service) <= 200 AND octet_length(topic) <= 249"
        f" AND coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) <= 64000000 AND {_TIME}"
        " AND pg_column_size(array_cat(header_names, '{}')) + pg_column_size(array_cat(header_values, '{}')) <= 1000000"
    ),
}
"""What bounds a row (R68)."""

_CHECKS: Mapping[Table, Sequence[str]] = {
    Table.CALLBACK: (BOUNDS[Table.CALLBACK], "state = ANY (ARRAY['C', 'R'])"),
    Table.SCHEDULED: (BOUNDS[Table.SCHEDULED],),
    Table.SOURCE: ("id = 0",),
    Table.FOREIGN_SOURCE: ("id = 0",),
}
"""The checks of each table; no other has one."""

_FACTS: LiteralString = """
SELECT c.oid IS NOT NULL, coalesce(c.relkind::text, ''), coalesce(pg_get_partkeydef(c.oid), ''),
       EXISTS (SELECT FROM pg_inherits i
                WHERE i.inhrelid = c.oid OR (i.inhparent = c.oid AND c.relkind <> 'p')),
       NOT EXISTS (SELECT FROM pg_class p WHERE p.oid = ANY (part.oids) AND p.relpersistence <> 'p'),
       ARRAY(SELECT DISTINCT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = ANY (part.oids)
                AND NOT t.tgisinternal AND t.tgenabled <> 'D' ORDER BY 1),
       ARRAY(SELECT DISTINCT r.rulename::text FROM pg_rewrite r WHERE r.ev_class = ANY (part.oids)
                AND r.ev_enabled <> 'D' ORDER BY 1),
       coalesce(row_security_active(c.oid), false),
       coalesce(key.columns, '{}'), coalesce(key.is_immediate, false),
       ARRAY(SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN '!' ELSE ''
                END FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       ARRAY(SELECT a.attname || ' = ' || CASE a.attidentity WHEN '' THEN CASE a.attgenerated WHEN '' THEN '' ELSE
                    'ALWAYS AS ' END || pg_get_expr(d.adbin, d.adrelid) WHEN 'a' THEN 'ALWAYS AS IDENTITY'
                    ELSE 'BY DEFAULT AS IDENTITY' END
                FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
               WHERE a.attrelid = c.oid AND (a.attidentity <> '' OR d.oid IS NOT NULL)),
       ARRAY(SELECT concat(k.conname, CASE WHEN k.conrelid <> c.oid THEN concat(' of ', k.conrelid::regclass) END,
                           ': ', pg_get_expr(k.conbin, k.conrelid), CASE WHEN NOT k.convalidated THEN ' NOT VALID' END)
                FROM pg_constraint k WHERE k.contype IN ('c', 'f') AND k.conparentid = 0
                 AND (k.conrelid = ANY (part.oids) OR k.confrelid = ANY (part.oids))
              UNION SELECT concat(i.indexrelid::regclass, ': ') FROM pg_index i
                WHERE i.indrelid = ANY (part.oids) AND (i.indisunique OR i.indisexclusion) AND NOT EXISTS (
                    SELECT FROM pg_index p WHERE p.indrelid = i.indrelid AND p.indisprimary
                       AND ROW(p.indkey, p.indnkeyatts, p.indclass, p.indcollation)::text
                         = ROW(i.indkey, i.indnkeyatts, i.indclass, i.indcollation)::text) ORDER BY 1),
       coalesce(serial.way, 0), serial.schema, serial.name, getdatabaseencoding()::text,
       (c.relreplident = 'n' OR c.relreplident = 'd' AND key.columns IS NULL) AND EXISTS (SELECT FROM pg_publication p,
           pg_get_publication_tables(p.pubname) t WHERE t.relid = c.oid AND (p.pubdelete OR p.pubupdate)),
       EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
  FROM unnest(CAST(%(places)s AS text[])) WITH ORDINALITY AS given (place, number)
  LEFT JOIN pg_class c ON c.oid = to_regclass(given.place)
  LEFT JOIN LATERAL (SELECT CASE c.relkind WHEN 'p' THEN ARRAY(SELECT relid::oid FROM pg_partition_tree(c.oid))
                                 ELSE ARRAY[c.oid] END AS oids) AS part ON true
  LEFT JOIN LATERAL (SELECT array_agg(a.attname::text ORDER BY k.place) AS columns,
                            bool_and(i.indimmediate AND i.indisvalid) AS is_immediate
                       FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
                       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
                      WHERE i.indrelid = c.oid AND i.indisprimary) AS key ON true
  LEFT JOIN LATERAL (SELECT sign(s.seqincrement)::integer * (s.seqcache = 1 AND NOT s.seqcycle)::integer AS way,
                            n.nspname::text AS schema, q.relname::text AS name
                       FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
                       JOIN pg_class q ON q.oid = d.objid JOIN pg_namespace n ON n.oid = q.relnamespace
                       JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                      WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
                        AND d.refobjid = c.oid AND d.deptype = 'i' AND a.attname = 'id') AS serial ON true
 ORDER BY given.number
"""
_RESTARTED: LiteralString = (
    "SELECT greatest(max(id), (SELECT max(highest) FROM {source}), 0)"
    " > (SELECT last_value - CAST(NOT is_called AS integer) FROM {sequence}) FROM {table}"
)
_MAY_READ: LiteralString = (
    "SELECT bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT'), false))"
    " FROM unnest(CAST(%s AS text[])) AS name"
)


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
    defaults: Sequence[str]
    constraints: Sequence[str]
    ids: int  # of its sequence: 1 if they ascend, -1 if they descend; 0: neither, or it has a cache or a cycle
    sequence_schema: str | None
    sequence: str | None
    encoding: str
    has_no_identity: bool
    is_subscribed: bool
    is_restarted: bool = False
    has_other_function: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Args:
        broken: Returns what a table is or has instead; empty if it fulfils the condition.
        fix: What to do; `{table}` is the table, `{create}` the command that makes it.
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


_CREATE = {Table.INBOX: "table create --inbox", Table.STAGED: "table create --sink", Table.SINK: "table create --sink"}
_ALL = frozenset(Table)
_OURS = _ALL - {Table.FOREIGN}


def _is_no_table(facts: Facts, table: Table) -> str:
    by_hash = facts.kind == "p" and facts.partition_key == "HASH (transaction_id)"
    fine = facts.kind == "r" or {Table.FOREIGN: facts.kind == "p", Table.CALLBACK: by_hash}.get(table, False)
    return "" if fine else "is not an ordinary table"


def _columns(table: Table) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and default of each column."""
    for column in _COLUMNS[table].replace("timestamptz", "timestamp with time zone").split(", "):
        written_as, _, default = column.partition(" = ")
        yield written_as.partition(" ")[0], written_as, default


def _lacks(facts: Facts, table: Table) -> str:
    wanted = {column: name for name, column, _ in _columns(table)}
    found = {*facts.columns, *(column.removesuffix("!") for column in facts.columns)}
    there = {column.partition(" ")[0]: column for column in facts.columns}
    missing = [f"{column} (found: {there.get(wanted[column], 'none')})" for column in sorted(wanted.keys() - found)]
    return f"lacks the columns {', '.join(missing)}".replace("!", " NOT NULL") if missing else ""


def _has_another_key(facts: Facts, table: Table) -> str:
    if ", ".join(facts.key) != _KEYS[table]:
        return f"needs the primary key ({_KEYS[table]})"
    return "" if facts.is_immediate else "has a deferrable primary key"


_TYPE_OR_BRACKET = re.compile(r"::[a-z0-9 ]+(\[\])?|[()'\s]")
_NOW = frozenset({"current_timestamp", "transaction_timestamp"})


def _plain(expression: str) -> str:
    """Return an expression without what Postgres adds when it writes it out: types, brackets, quotes."""
    plain = _TYPE_OR_BRACKET.sub("", expression).lower()
    return "now" if plain in _NOW else plain


def _has_other_defaults(facts: Facts, table: Table) -> str:
    found = dict(default.split(" = ", 1) for default in facts.defaults)
    other = [
        f"{name}: {found.get(name, 'none')} instead of {wanted or 'none'}"
        for name, _, wanted in _columns(table)
        if _plain(found.get(name, "")) != _plain(wanted)
    ]
    return f"has other defaults ({', '.join(other)})" if other else ""


def _way(table: Table) -> int:
    return -1 if table is Table.SCHEDULED else 1


def _lacks_checks(facts: Facts, table: Table) -> str:
    found = {_plain(text) for name, _, text in _constraints(facts) if " of " not in name}
    lacking = ", ".join(f"CHECK ({check})" for check in _CHECKS[table] if _plain(check) not in found)
    return lacking and f"lacks, or has not validated, {lacking}"


def _constraints(facts: Facts) -> list[tuple[str, str, str]]:
    """Return name, colon and check of each constraint and unique index; a name has ` of ` if it is another table's."""
    return [one.partition(": ") for one in facts.constraints]


def _has_other_constraints(facts: Facts, table: Table) -> str:
    own = {*map(_plain, _CHECKS.get(table, ()))}
    other = [name for name, _, text in _constraints(facts) if _plain(text).removesuffix("notvalid") not in own]
    return f"has constraints that are not its own: {', '.join(other)}" if other else ""


CONTRACT = (
    Condition(
        "it exists",
        _ALL,
        lambda facts, _: "" if facts.exists else "does not exist",
        "nothing can be written or delivered",
        "run `{create}`, or the SQL of its `--print-sql`",
    ),
    Condition(
        "an ordinary table; a callback table may be hash-partitioned by transaction_id, a foreign table in any way",
        _ALL,
        _is_no_table,
        "its rows are not unique, or not its own",
        "make it one, as `{create} --print-sql` does",
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
        "run ALTER TABLE {table} ADD COLUMN …, or ALTER COLUMN … TYPE … or SET NOT NULL, as in `{create} --print-sql`",
    ),
    Condition(
        "its primary key, not deferrable",
        _OURS,
        _has_another_key,
        "a row could be there twice, and a fence would be void",
        "make it as `{create} --print-sql` does, NOT DEFERRABLE",
    ),
    Condition(
        "its checks, validated",
        frozenset(BOUNDS),
        _lacks_checks,
        "one row could take all the memory of a checker, or stop those that wait with it",
        "run ALTER TABLE {table} ADD CHECK (…) with it, or VALIDATE CONSTRAINT",
    ),
    Condition(
        "no foreign key from or to it; no check, exclusion constraint or unique index that is not its own",
        _OURS,
        _has_other_constraints,
        "statements of relay, checker or application would fail, or rows go with those of another table",
        "run ALTER TABLE … DROP CONSTRAINT …, or DROP INDEX …, for each",
    ),
    Condition(
        "no trigger",
        _OURS,
        lambda facts, _: f"has triggers: {', '.join(facts.triggers)}" if facts.triggers else "",
        "they could change a decision, keep rows that were delivered, or add and drop messages",
        "drop or disable them; yours belong on your own tables",
    ),
    Condition(
        "no rule",
        _OURS,
        lambda facts, _: f"has rules: {', '.join(facts.rules)}" if facts.rules else "",
        "statements would do something else than is written",
        "drop them",
    ),
    Condition(
        "a replica identity, if it is in a publication",
        frozenset({Table.MESSAGE, Table.SOURCE, Table.FOREIGN, Table.FOREIGN_SOURCE}),  # else only upkeep fails
        lambda facts, _: "has no replica identity, and is in a publication" if facts.has_no_identity else "",
        "Postgres refuses to change or delete a row of it",
        "run ALTER TABLE {table} REPLICA IDENTITY DEFAULT, or take it out of the publication",
    ),
    Condition(
        "in no subscription",
        frozenset({Table.MESSAGE, Table.SCHEDULED, Table.SOURCE}),
        lambda facts, _: "is in a subscription" if facts.is_subscribed else "",
        "another server adds and deletes rows",
        "run DROP SUBSCRIPTION, or take it out of the publication and run ALTER SUBSCRIPTION … REFRESH PUBLICATION",
    ),
    Condition(
        "in a database in UTF8 or LATIN1",
        frozenset({Table.MESSAGE, Table.CALLBACK}),
        lambda facts, _: "" if facts.encoding in {"UTF8", "LATIN1"} else f"is in a database in {facts.encoding}",
        "one row whose text is not UTF-8 would hold up all others",
        "create the database with ENCODING 'UTF8'",
    ),
    Condition(
        "no row security for the role",
        _ALL,
        lambda facts, _: "has row security" if facts.is_secured else "",
        "rows that are hidden would never be delivered, or be delivered for ever",
        "run ALTER TABLE {table} DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS",
    ),
    Condition(
        "ids from a sequence that ascends (of messages that wait for their time: descends), without a cache or a cycle",
        frozenset({Table.MESSAGE, Table.SCHEDULED, Table.STAGED, Table.FOREIGN_DISCARDED}),
        lambda facts, table: "" if facts.ids == _way(table) else "has another sequence of ids",
        "messages of one key would not be in the order of the changes",
        "run ALTER TABLE {table} ALTER COLUMN id SET CACHE 1 SET INCREMENT 1 SET NO CYCLE (of messages that wait for"
        " their time: SET INCREMENT -1)",
    ),
    Condition(
        "its defaults, identity and generated columns, and no others",
        _OURS,
        _has_other_defaults,
        "rows of one transaction would be taken for several, or for another's, or be purged too early",
        "run ALTER TABLE {table} ALTER COLUMN … SET DEFAULT …, or as `{create} --print-sql` has it",
    ),
    Condition(
        "`outbox_publish()`, where it is, as `outbox table create` makes it",
        frozenset({Table.MESSAGE}),
        lambda facts, _: "has another function outbox_publish()" if facts.has_other_function else "",
        "it could lose a message whose transaction commits",
        "run `outbox table create`, which makes the function again",
    ),
    Condition(
        "no id above the last value of its sequence, also none that was delivered",
        frozenset({Table.MESSAGE}),
        lambda facts, _: "has, or had, ids above the last value of their sequence" if facts.is_restarted else "",
        "ids have started again, so new messages would overtake others of their key",
        "stop the writers, then run SELECT setval(pg_get_serial_sequence('{table}', 'id'), greatest(max(id),"
        " (SELECT highest FROM {source}))) FROM {table}",
    ),
)


def exists(connection: psycopg.Connection[Any], place: tuple[str, str]) -> bool:
    """Return whether there is a table of a schema and a name."""
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", (identifier(*place),)).fetchone() == (True,)


def breaches(connection: psycopg.Connection[Any], places: Places) -> list[Breach]:
    """Return which conditions tables break, for the role of a connection that is in no other transaction."""
    for schema in sorted({schema for schema, _ in places.values()}):
        if not may_use_schema(connection, schema):
            name, user = written(schema), written(connection.info.user)
            problem = f"role {user} may not use schema {name}"
            return [Breach(problem, "its tables cannot be read", f"GRANT USAGE ON SCHEMA {name} TO {user}")]
    rows = connection.execute(_FACTS, {"places": [identifier(*place) for place in places.values()]}).fetchall()
    found = zip(places.items(), (Facts(*row) for row in rows), strict=True)
    return [breach for (table, place), facts in found for breach in _breaches(connection, table, place, facts)]


def require_contract(connection: psycopg.Connection[Any], places: Places) -> None:
    if found := breaches(connection, places):
        raise TableError("; ".join(map(str, found)))


def _breaches(
    connection: psycopg.Connection[Any], table: Table, place: tuple[str, str], facts: Facts
) -> Iterator[Breach]:
    if table is Table.MESSAGE:
        restarted = facts.sequence is not None and not facts.is_secured and _is_restarted(connection, place, facts)
        altered = is_altered(connection, _names(place))
        facts = facts._replace(is_restarted=restarted, has_other_function=altered)
    for condition in CONTRACT:
        if table in condition.tables and (problem := condition.broken(facts, table)):
            name, source = written(*place), table is Table.MESSAGE and written(place[0], _names(place).source)
            create = f"outbox {_CREATE.get(table, 'table create')}"
            fix = condition.fix.format(table=name, source=source, create=create)
            yield Breach(f"table {name} {problem}", condition.harm, fix)
            if not facts.exists:
                return


def _is_restarted(connection: psycopg.Connection[Any], place: tuple[str, str], facts: Facts) -> bool:
    """Return whether ids are above their sequence; not for a role that may not read it, which delivers nothing."""
    sequence, source = (str(facts.sequence_schema), str(facts.sequence)), (place[0], _names(place).source)
    places = {"table": identifier(*place), "sequence": identifier(*sequence), "source": identifier(*source)}
    if connection.execute(_MAY_READ, ([*places.values()],)).fetchone() != (True,):
        return False
    return connection.execute(_RESTARTED.format(**places)).fetchone() == (True,)


def _names(place: tuple[str, str]) -> TableNames:
    """Return the names of the tables beside one."""
    return TableNames(place[0], place[1].rpartition("_")[0])
