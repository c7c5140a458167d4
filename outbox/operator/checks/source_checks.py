"""The examination of table sources: tables, rights in Postgres, vacuum, and progress."""

import time
from collections.abc import Mapping
from typing import LiteralString

from outbox._postgres.ddl import identifier, missing_rights, written
from outbox._postgres.dsn import connection_remedy
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_errors import LOOK
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.operator.checks.database_checks import broken
from outbox.operator.checks.finding import Finding, Found
from outbox.operator.reading.source_report import SourceReporter, table_of
from outbox.operator.reading.table_view import IN_TABLES, Connection, Delivered, opened_table, remedy
from outbox.operator.state.channel_state import Condition, SourceState
from outbox.operator.state.waiting_rows import FIXES, OVERDUE
from outbox.operator.words import reasons
from outbox.protocol.names import Channel

LATE_MS = 300_000  # age from which a row is late, as for the alert OutboxTableLate

_VACUUM = {  # without these a queue's table and its indexes grow: rows are inserted at one end and deleted at the other
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "10000",
    "autovacuum_vacuum_cost_delay": "0",
}

_STORAGE: LiteralString = "SELECT coalesce(reloptions, '{}') FROM pg_class WHERE oid = to_regclass(%s)"
_INDEXED: LiteralString = (
    "SELECT count(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
    " WHERE i.indrelid = to_regclass(%s) AND a.attname = 'xid' AND i.indisvalid"
)
_BELONGS: LiteralString = "SELECT name, message_table FROM {source} WHERE id = 0"
_KEEPERS: LiteralString = (  # what the application has made to run when a row is deleted (8) or updated (16)
    "SELECT coalesce(string_agg(what, ', ' ORDER BY what), 'none') FROM (SELECT 'trigger ' || tgname FROM pg_trigger"
    " WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 24 <> 0"
    " UNION SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = to_regclass(%(table)s) AND ev_enabled <> 'D')"
    " AS found (what)"
)

OWNED_SECONDS = 2.0  # a halted source is owned for a moment at each try, and then by no session for 5 s


def examine_sources(
    tables: Mapping[str, TableSettings], kafka: Mapping[str, str], channel: Channel, *, is_silent: bool
) -> Found:
    reporter = SourceReporter(kafka, channel, is_unreachable=is_silent, writes=True)
    for source, settings in tables.items():
        yield from examine_source(source, table_of(settings), settings.connection_string(), reporter)


def examine_source(source: str, table: Delivered, dsn: str, reporter: SourceReporter) -> Found:
    what = f"table source {source}"
    try:
        with opened_table(source, table, dsn) as view:
            if isinstance(table, ForeignSource):
                found = list(_examine_foreign(view.connection, what, source, table))
            else:
                found = list(_examine_tables(view.connection, what, table))
    except ConfigurationError as error:
        found = [Finding(what, str(error), remedy(error, dsn))]
    yield from found
    if any(not one.fine for one in found):
        return
    state = reporter.report(source, table, dsn)
    if state.foreign and state.condition is Condition.SERVED:
        time.sleep(OWNED_SECONDS)
        state = reporter.report(source, table, dsn)
    yield from examine_state(state, dsn)


def examine_state(found: SourceState, dsn: str = "") -> Found:
    what = f"table source {found.source}"
    for problem in found.not_read:
        yield Finding(what, f"not read: {problem}", "correct it, and run this again")
    yield Finding(what, *_progress(found, dsn))
    for one in found.waiting:
        if one.is_refused:
            rows = f"{one.rows} rows of {', '.join(one.services)}"
            yield Finding(what, f"{rows} wait for topic {one.topic}: {one.reason}, {one.detail}", FIXES[one.reason])
    if found.overdue:
        yield Finding(what, f"{found.overdue} messages whose not_before has passed are not moved", OVERDUE)
    if found.discarded:
        fix = "see `outbox discarded list`; correct the reason, then `outbox discarded deliver`, or `drop`"
        if found.foreign:
            fix = "see docs/foreign_tables.md, 'What cannot be delivered'"
        yield Finding(what, f"rows are discarded, and are not delivered: {reasons(found.discarded)}", fix)


def _progress(found: SourceState, dsn: str) -> tuple[str, str]:
    """Return the first that is wrong with a source, and what to do; else nothing, and how it is."""
    condition, rows = found.condition, f"{found.rows} rows wait"
    page = "foreign_tables" if found.foreign else "table_mode"
    start = f"start a relay with {found.source} in its setting tables, or see the log of the one that runs"
    late = f"{rows}, the oldest for {(found.age_ms or 0) // 60_000} minutes; {condition}"
    is_unserved = condition is not Condition.SERVED and found.batch is not None
    fine = f"{condition}, foreign table {found.table}; its rows are not examined"
    waits, kafka = f"the {found.rows} rows that wait", "start Kafka: a relay that runs takes the table over by itself"
    if condition is Condition.READ_ONLY:
        return f"{condition}: {found.why}; {rows}", connection_remedy(dsn, IN_TABLES, condition)
    cases = (
        (condition is Condition.HALTED, f"halted: {found.why}", f"see docs/{page}.md, 'A source that stops'"),
        (found.why, f"{condition}: {found.why}", "see docs/operations/teams.md, or correct the setting tables"),
        (found.foreign and is_unserved, f"{condition}: no relay delivers the table", start),
        (found.foreign, "", fine),
        (found.rows and condition is Condition.NO_KAFKA, f"{condition}: no relay can deliver {waits}", kafka),
        (is_late(found), late, "see `outbox pending`: it has the reasons"),
        (found.rows and condition is Condition.NO_OWNER, f"{condition}: no relay delivers {waits}", start),
    )
    return next(((problem, fix) for is_so, problem, fix in cases if is_so), ("", f"{condition}, {rows}"))


def is_late(found: SourceState) -> bool:
    return (found.age_ms or 0) > LATE_MS


def _examine_foreign(connection: Connection, what: str, source: str, foreign: ForeignSource) -> Found:
    other, given = "set another table_prefix", f"{foreign.names.prefix} --message-table {'.'.join(foreign.table)}"
    ways = f"; run `outbox table create --table-prefix {given}`, correct message_table, or {other}"
    if found := broken(what, connection, foreign.places, ways):
        yield from found
        return
    owner = connection.execute(foreign.compose(_BELONGS)).fetchone()
    if owner not in {None, (source, foreign.full_name)}:
        of = "source {!r} and table {}".format(*owner)
        yield Finding(what, f"table {foreign.full_source} has the progress of {of}", other)
        return
    (keepers,) = connection.execute(_KEEPERS, {"table": identifier(*foreign.table)}).fetchone() or ("none",)
    yield Finding(what, "", f"triggers and rules of {foreign.full_name} that may keep rows where they are: {keepers}")


def _examine_tables(connection: Connection, what: str, table: MessageTable) -> Found:
    user = connection.info.user
    if found := broken(what, connection, table.places):
        yield from found
        return
    yield Finding(what, "", f"{table.full_name}, role {user}")
    quoted = identifier(table.names.schema, table.names.message)
    if connection.execute(_INDEXED, (quoted,)).fetchone() == (0,):
        problem = f"table {table.full_name} has no index on xid: each batch reads the whole table"
        yield Finding(what, problem, "run `outbox table create`")
    if lacks := missing_rights(connection, table.names.schema, table.relay_grant(user).rights):  # an operator's, too
        rights = ", ".join(f"{privilege} on {name}" for privilege, name in lacks)
        fix = f"{LOOK}; if it is the relay's, run `outbox table create --relay-role {written(user)}`"
        yield Finding(what, f"role {user} may not {rights}", fix)
    else:
        yield Finding(what, "", f"role {user} may deliver, and decide on discarded rows")
    if connection.execute("SELECT current_setting('autovacuum')").fetchone() != ("on",):
        yield Finding(what, "autovacuum is off: the table grows without end", "set autovacuum = on")
    row = connection.execute(_STORAGE, (quoted,)).fetchone()
    if different := vacuum_problems(dict(option.split("=", 1) for option in (row[0] if row else ()))):
        fix = ", ".join(f"{name} = {_VACUUM[name]}" for name in different)
        problem = f"table {table.full_name} is vacuumed too late: {', '.join(different)}"
        yield Finding(what, problem, f"ALTER TABLE {table.full_name} SET ({fix})")
    else:
        (naptime,) = connection.execute("SELECT current_setting('autovacuum_naptime')").fetchone() or ("",)
        yield Finding(what, "", f"is vacuumed early, at most every {naptime} (autovacuum_naptime)")


def vacuum_problems(options: Mapping[str, str]) -> list[str]:
    return [name for name, most in _VACUUM.items() if float(options.get(name, "inf")) > float(most)]
