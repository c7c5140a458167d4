"""The examination of table sources: tables, rights, vacuum, progress, and rights in Kafka."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from outbox._kafka.admin import REQUEST_TIMEOUT, admin_client
from outbox._postgres.ddl import missing_rights, written
from outbox._postgres.dsn import connection_remedy
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import source_name
from outbox._postgres.table_contract import breaches
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.operator.checks.finding import Finding
from outbox.operator.reading.source_report import SourceReporter
from outbox.operator.reading.table_view import IN_TABLES, remedy, table_connection
from outbox.operator.state.channel_state import Condition, SourceState
from outbox.operator.state.waiting_rows import FIXES
from outbox.protocol.names import Channel
from outbox.settings import TableNames

LATE_MS = 300_000
"""Age from which a row is late, as for the alert OutboxTableLate."""

_VACUUM = {
    "autovacuum_vacuum_scale_factor": "0",
    "autovacuum_vacuum_threshold": "10000",
    "autovacuum_vacuum_cost_delay": "0",
}
"""Without these a queue's table and its indexes grow: rows are inserted at one end and deleted at the other."""

_STORAGE: LiteralString = "SELECT coalesce(reloptions, '{}') FROM pg_class WHERE oid = to_regclass(%s)"
_INDEXED: LiteralString = (
    "SELECT count(*) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
    " WHERE i.indrelid = to_regclass(%s) AND a.attname = 'xid' AND i.indisvalid"
)
_MAY_INSERT: LiteralString = "SELECT has_any_column_privilege(to_regclass(%s), 'INSERT')"
_BELONGS: LiteralString = "SELECT name, message_table FROM {source} WHERE id = 0"
_KEEPERS: LiteralString = (
    "SELECT coalesce(string_agg(what, ', ' ORDER BY what), 'none') FROM (SELECT 'trigger ' || tgname FROM pg_trigger"
    " WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 24 <> 0"
    " UNION SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = to_regclass(%(table)s) AND ev_enabled <> 'D')"
    " AS found (what)"
)
"""What the application has made to run when a row is deleted (8) or updated (16)."""

OWNED_SECONDS = 2.0
"""A halted source is owned for a moment at each try, and then by no session for 5 s."""


def examine_sources(
    tables: Mapping[str, TableSettings], kafka: Mapping[str, str], channel: Channel, *, is_silent: bool
) -> Iterator[Finding]:
    reporter = SourceReporter(kafka, channel, is_unreachable=is_silent, writes=True)
    for source, table in tables.items():
        if table.is_foreign:
            foreign = ForeignSource(table.table_names(), table.foreign_name())
            yield from examine_foreign(source, foreign, table.connection_string(), reporter)
        else:
            yield from TableDoctor(source, table.table_names(), table.connection_string()).examine(
                kafka, channel, reporter
            )


class TableDoctor:
    """Examines one message table."""

    def __init__(self, source: str, names: TableNames, dsn: str) -> None:
        self._source = source
        self._what = f"table source {source}"
        self._names = names
        self._dsn = dsn
        self._table = MessageTable(names)

    def examine(self, kafka: Mapping[str, str], channel: Channel, reporter: SourceReporter) -> Iterator[Finding]:
        """Yield what is found of the tables, and of the source's progress and rights in Kafka."""
        try:
            with table_connection(self._source, self._names, self._dsn) as connection:
                found = list(self._database(connection))
        except ConfigurationError as error:
            yield Finding(self._what, str(error), remedy(error, self._dsn))
            return
        yield from found
        if any(not finding.fine for finding in found):
            return
        report = reporter.report(self._source, self._table, self._dsn)
        yield from self._progress(report)
        yield from self._refused(report)
        yield from _discarded(self._what, report)
        if reporter.is_unreachable:
            yield Finding(self._what, "", "rights in Kafka are not checked: it does not answer")
        else:
            yield from self._kafka(kafka, channel.table_group(self._source))

    # --- the database

    def _database(self, connection: psycopg.Connection[Any]) -> Iterator[Finding]:
        user = connection.info.user
        if found := breaches(connection, self._table.places):  # of their contract (R75)
            yield from (Finding(self._what, f"{one.what}: {one.harm}", one.fix) for one in found)
            return
        yield Finding(self._what, "", f"{self._table.full_name}, role {user}")
        yield from self._indexes(connection)
        yield from self._grants(connection)
        yield from self._vacuum(connection)

    def _indexes(self, connection: psycopg.Connection[Any]) -> Iterator[Finding]:
        names = self._names
        row = connection.execute(_INDEXED, (f'"{names.schema}"."{names.message}"',)).fetchone()
        if row == (0,):
            problem = f"table {self._table.full_name} has no index on xid: each batch reads the whole table"
            yield Finding(self._what, problem, "run `outbox table create`")

    def _grants(self, connection: psycopg.Connection[Any]) -> Iterator[Finding]:
        """Yield what a relay needs, and what an operator needs besides."""
        names, user = self._names, connection.info.user
        lacks = missing_rights(connection, names.schema, self._table.relay_grant(user).rights)
        for privilege, name in lacks:
            problem = f"role {user} may not {privilege} on {name}"
            fix = f"run `outbox table create --relay-role {written(user)}`, or name the relay's role"
            yield Finding(self._what, problem, fix)
        if not lacks:
            yield Finding(self._what, "", f"role {user} may deliver{self._more_rights(connection)}")

    def _more_rights(self, connection: psycopg.Connection[Any]) -> str:
        names = self._names
        inserts = connection.execute(_MAY_INSERT, (f'"{names.schema}"."{names.message}"',)).fetchone() == (True,)
        if inserts and not missing_rights(connection, names.schema, {names.discarded: ("DELETE",)}):
            return ", and decide on discarded rows"
        return "; `outbox discarded deliver` and `drop` need a role of `outbox table create --operator-role`"

    def _vacuum(self, connection: psycopg.Connection[Any]) -> Iterator[Finding]:
        names, full = self._names, self._table.full_name
        if connection.execute("SELECT current_setting('autovacuum')").fetchone() != ("on",):
            yield Finding(self._what, "autovacuum is off: the table grows without end", "set autovacuum = on")
        row = connection.execute(_STORAGE, (f'"{names.schema}"."{names.message}"',)).fetchone()
        options = dict(option.split("=", 1) for option in (row[0] if row else ()))
        if different := vacuum_problems(options):
            fix = ", ".join(f"{name} = {_VACUUM[name]}" for name in different)
            problem = f"table {full} is vacuumed too late: {', '.join(different)}"
            yield Finding(self._what, problem, f"ALTER TABLE {full} SET ({fix})")
        else:
            (naptime,) = connection.execute("SELECT current_setting('autovacuum_naptime')").fetchone() or ("",)
            yield Finding(self._what, "", f"is vacuumed early, at most every {naptime} (autovacuum_naptime)")

    # --- the progress

    def _progress(self, found: SourceState) -> Iterator[Finding]:
        for problem in found.not_read:
            yield Finding(self._what, f"not read: {problem}", "correct it, and run this again")
        if found.condition is Condition.HALTED:
            yield Finding(self._what, f"halted: {found.why}", "see docs/table_mode.md, 'A source that stops'")
        elif found.condition is Condition.READ_ONLY:
            fix = connection_remedy(self._dsn, IN_TABLES, found.condition)
            yield Finding(self._what, f"{found.condition}: {found.why}; {found.rows} rows wait", fix)
        elif found.why:
            yield Finding(self._what, f"{found.condition}: {found.why}", "REVOKE EXECUTE as the page shows")
        elif found.rows and found.condition is Condition.NO_KAFKA:
            problem = f"{found.condition}: no relay can deliver the {found.rows} rows that wait"
            yield Finding(self._what, problem, "start Kafka: a relay that runs takes the table over by itself")
        elif is_late(found):
            minutes = (found.age_ms or 0) // 60_000
            problem = f"{found.rows} rows wait, the oldest for {minutes} minutes; {found.condition}"
            yield Finding(self._what, problem, "see `outbox pending`: it has the reasons")
        elif found.rows and found.condition is Condition.NO_OWNER:
            problem = f"no owner: no relay delivers the {found.rows} rows that wait"
            fix = f"start a relay with {self._source} in its setting tables, or see the log of the one that runs"
            yield Finding(self._what, problem, fix)
        else:
            yield Finding(self._what, "", f"{found.condition}, {found.rows} rows wait")

    def _refused(self, found: SourceState) -> Iterator[Finding]:
        """Yield the real topics that refuse rows, and the services of these, which do not see it."""
        for one in found.waiting:
            if one.is_refused:
                of = f"{one.rows} rows of {', '.join(one.services)}"
                yield Finding(
                    self._what, f"{of} wait for topic {one.topic}: {one.reason}, {one.detail}", FIXES[one.reason]
                )

    # --- Kafka

    def _kafka(self, kafka: Mapping[str, str], group: str) -> Iterator[Finding]:
        admin = admin_client(kafka)
        yield self._group(admin, group)
        yield self._transactional_id(admin, group)

    def _group(self, admin: AdminClient, group: str) -> Finding:
        future = admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT
        )[group]
        try:
            allowed = future.result().authorized_operations
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                return self._lacks_group(group)
            return Finding(self._what, "", f"READ on group {group} is not checked: {error.args[0].str()}")
        if allowed is not None and AclOperation.READ not in allowed:
            return self._lacks_group(group)
        return Finding(self._what, "", f"this client may READ group {group}")

    def _lacks_group(self, group: str) -> Finding:
        return Finding(self._what, f"this client may not READ group {group}", "grant it to the relay")

    def _transactional_id(self, admin: AdminClient, name: str) -> Finding:
        """Return who may write under the transactional id. Trying it out would fence the owner."""
        future = admin.describe_acls(
            AclBindingFilter(
                ResourceType.TRANSACTIONAL_ID,
                name,
                ResourcePatternType.MATCH,
                None,  # type: ignore[arg-type]  # of anybody, as its documentation allows
                None,  # type: ignore[arg-type]  # as above
                AclOperation.ANY,
                AclPermissionType.ALLOW,
            ),
            request_timeout=REQUEST_TIMEOUT,
        )
        try:
            found = [(rule.principal, rule.operation) for rule in future.result()]
        except KafkaException as error:
            why = error.args[0].str()
            return Finding(self._what, "", f"WRITE on transactional id {name} is not checked: {why}")
        return transactional_finding(self._what, name, found)


def examine_foreign(source: str, foreign: ForeignSource, dsn: str, reporter: SourceReporter) -> Iterator[Finding]:
    """Yield what is found. Whether the table can be delivered, the relay examines when it takes it over."""
    what, names = f"table source {source}", foreign.names
    create = f"run `outbox table create --table-prefix {names.prefix} --message-table {'.'.join(foreign.table)}`"
    other = "set another table_prefix"
    try:
        with table_connection(source, names, dsn, foreign=foreign) as connection:
            if found := breaches(connection, foreign.places):
                ways = f"{create}, correct message_table, or {other}"
                yield from (Finding(what, f"{one.what}: {one.harm}", f"{one.fix}; {ways}") for one in found)
                return
            owner = connection.execute(foreign.compose(_BELONGS)).fetchone()
            (keepers,) = connection.execute(_KEEPERS, {"table": source_name(*foreign.table)}).fetchone() or ("none",)
    except ConfigurationError as error:
        yield Finding(what, str(error), remedy(error, dsn))
        return
    if owner not in {None, (source, foreign.full_name)}:
        of = "source {!r} and table {}".format(*owner)
        yield Finding(what, f"table {foreign.full_source} has the progress of {of}", other)
        return
    report = reporter.report(source, foreign, dsn)
    if report.condition is Condition.SERVED:
        time.sleep(OWNED_SECONDS)
        report = reporter.report(source, foreign, dsn)
    for problem in report.not_read:
        yield Finding(what, f"not read: {problem}", "correct it, and run this again")
    may_keep = f"triggers and rules of {report.table} that may keep rows where they are: {keepers}"
    if report.condition is Condition.HALTED:
        problem = f"halted: {report.why}; {may_keep}"
        yield Finding(what, problem, "see docs/foreign_tables.md, 'A source that stops'")
    elif report.condition is not Condition.SERVED and report.batch is not None:
        problem = f"{report.condition}: {report.why or 'no relay delivers the table'}; {may_keep}"
        yield Finding(what, problem, f"start a relay with {source} in its setting tables; a running one logs the cause")
    else:
        yield Finding(what, "", f"{report.condition}, foreign table {report.table}; its rows are not examined")
    yield from _discarded(what, report)


def transactional_finding(what: str, name: str, found: Sequence[tuple[str, AclOperation]]) -> Finding:
    """Return whether the ACLs that allow something on a transactional id let a principal write under it."""
    if not found:
        return Finding(what, "", f"no ACL names transactional id {name}: the cluster's default holds")
    writers = sorted({who for who, right in found if right in {AclOperation.WRITE, AclOperation.ALL}})
    if not writers:
        return Finding(what, f"no ACL allows WRITE on transactional id {name}", "grant it to the relay")
    return Finding(what, "", f"WRITE on transactional id {name} is allowed to {', '.join(writers)}")


def vacuum_problems(options: Mapping[str, str]) -> list[str]:
    """Return the names of the vacuum settings of a message table that are missing or higher than they should be."""
    return [name for name, most in _VACUUM.items() if float(options.get(name, "inf")) > float(most)]


def _discarded(what: str, found: SourceState) -> Iterator[Finding]:
    """Yield that rows of a source are discarded: they stay undelivered until an operator acts."""
    if found.discarded:
        reasons = ", ".join(f"{one.rows} {one.reason}" for one in found.discarded)
        if not found.foreign:
            fix = "see `outbox discarded list`; correct the reason, then `outbox discarded deliver`, or `drop`"
        else:
            fix = "see docs/foreign_tables.md, 'What cannot be delivered'"
        yield Finding(what, f"rows are discarded, and are not delivered: {reasons}", fix)


def is_late(found: SourceState) -> bool:
    """Return whether rows of a source wait for long."""
    return (found.age_ms or 0) > LATE_MS
