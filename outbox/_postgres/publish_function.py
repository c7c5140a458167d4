"""`outbox_publish()`, by which any program publishes with SQL: its DDL, and whether it is as it was made (R75, R78)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

from outbox._postgres.ddl import identifier
from outbox._postgres.table_errors import options
from outbox.settings import TableNames

if TYPE_CHECKING:  # as in `ddl`
    import psycopg

STARTED_US: LiteralString = "CAST(extract(epoch FROM created_at) * 1000000 AS bigint)"
"""Start of the local transaction, microseconds since 1970; `table_transaction_id()` takes it."""

TRANSACTION_ID: LiteralString = (
    f"(lpad(to_hex({STARTED_US} / 1000), 12, '0') || '7' || lpad(to_hex(mod({STARTED_US}, 1000) * 4), 3, '0')"
    " || to_hex((-9223372036854775808) | CAST(CAST(xid AS text) AS bigint)))::uuid"
)
"""Transaction id of a row, as `table_transaction_id()` makes it."""

START: LiteralString = (
    "least(greatest(created_at, timestamptz '1970-01-01 00:00:00+00'), timestamptz '9998-12-31 00:00:00+00')"
)
"""The start of a row's local transaction, as a time of the calendar: a transaction id can be made of it."""

AGE: LiteralString = f"extract(epoch FROM clock_timestamp() - least({START}, clock_timestamp()))"
"""The age of a row, seconds."""

# No semicolon is at the end of a line: `split()` would end the statement there.
_BODY: LiteralString = """
DECLARE made text; wrong text := CASE
    WHEN coalesce($1, '') !~ '^[A-Za-z0-9._-]{{1,200}}$'
    THEN 'service ' || quote_nullable(left($1, 300)) || ' is no name of a service'
    WHEN coalesce($2, '') !~ '^(?!__|[.][.]?$)[A-Za-z0-9._-]{{1,249}}$'
    THEN 'topic ' || quote_nullable(left($2, 300)) || ' is no name of a topic that Kafka allows, or is Kafka''s own'
    WHEN $6 < -1 THEN 'partition ' || $6 || ' is below 0'
    WHEN NOT isfinite($7) THEN 'not_before ' || $7 || ' is no time that comes'
    WHEN coalesce(octet_length($3), 0) + coalesce(octet_length($4), 0) > 64000000 THEN 'key and value exceed 64 MB'
    WHEN jsonb_typeof($5) NOT IN ('object', 'null') THEN 'headers are no JSON object of names and texts'
    WHEN EXISTS (SELECT FROM jsonb_object_keys(nullif($5, 'null')) name WHERE starts_with(name, 'outbox-'))
    THEN 'a header begins with outbox-, which is reserved'
    WHEN (SELECT sum(octet_length(h.key) + coalesce(octet_length(h.value), 0))
        FROM jsonb_each_text(nullif($5, 'null')) h) > 1000000
    THEN 'headers exceed 1 MB' END;
BEGIN
    IF NOT (has_any_column_privilege('{message}', 'INSERT') AND has_any_column_privilege('{message}', 'SELECT')) THEN
    RAISE insufficient_privilege USING MESSAGE = 'outbox: role ' || current_user || ' may not use the tables',
    HINT = 'Let their owner run `outbox table create{options} --application-role ' || current_user || '`'; END IF;
    IF wrong IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = 'outbox: ' || wrong || ': not inserted', ERRCODE = 'check_violation'; END IF;
    IF $7 IS NULL THEN {insert}; ELSE {schedule}; END IF; IF NOT FOUND THEN
    RAISE EXCEPTION 'outbox: the message was not inserted: a trigger or a rule of its table keeps rows out'; END IF;
    RETURN made; END
""".replace(";\n", "; ")
_INSERT: LiteralString = """
    INSERT INTO {table} ({more}service, topic, partition, key, value, header_names, header_values)
    SELECT {time}$1, $2, coalesce($6, -1), convert_to($4, 'UTF8'), convert_to($3, 'UTF8'), array_agg(header.key),
           array_agg(convert_to(header.value, 'UTF8')) FROM jsonb_each_text(nullif($5, 'null')) header
    RETURNING {id} || '/' || id INTO made"""
_DDL: LiteralString = (
    "CREATE OR REPLACE FUNCTION {function} (service text, topic text, value text, key text DEFAULT NULL,"
    " headers jsonb DEFAULT NULL, partition integer DEFAULT -1, not_before timestamptz DEFAULT NULL)"
    " RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog AS $${body}$$"
)
_IS_OURS: LiteralString = (
    "SELECT NOT p.proisstrict AND l.lanname = 'plpgsql' AND p.proconfig = '{search_path=pg_catalog}'"
    " AND replace(p.prosrc, E'\\r', '') = %s FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang"
    " WHERE p.oid = to_regprocedure(%s)"
)


def publish_statement(names: TableNames) -> str:
    """Return the statement that makes the function."""
    return _DDL.format(function=identifier(names.schema, names.publish_function), body=_body(names))


def is_altered(connection: psycopg.Connection[Any], names: TableNames) -> bool:
    """Return whether the function is there and is not as it was made: it would not insert what it is given."""
    function = identifier(names.schema, names.publish_function)
    place = f"{function}(text, text, text, text, jsonb, integer, timestamptz)"
    return connection.execute(_IS_OURS, (_body(names), place)).fetchone() not in {None, (True,)}


def _body(names: TableNames) -> str:
    message, scheduled = (identifier(names.schema, name) for name in (names.message, names.scheduled))
    return _BODY.format(
        message=message,
        options=options(names.schema, names.message),
        insert=_INSERT.format(table=message, more="", time="", id=TRANSACTION_ID),
        schedule=_INSERT.format(table=scheduled, more="not_before, ", time="$7, ", id=TRANSACTION_ID),
    )
