"""The doctor's examination of a foreign table: that it is there, and the relay's progress beside it is its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import LiteralString

from outbox._operations.finding import Finding
from outbox._operations.source_report import Condition, SourceReporter
from outbox._operations.table_connection import remedy, table_connection
from outbox._operations.table_doctor import examine_discarded
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.notifications import NOTIFIED, has_trigger
from outbox._postgres.source_statements import source_name
from outbox._postgres.table_contract import breaches
from outbox.errors import ConfigurationError

_BELONGS: LiteralString = "SELECT name, message_table FROM {source} WHERE id = 0"


def examine_foreign(source: str, foreign: ForeignSource, dsn: str, reporter: SourceReporter) -> Iterator[Finding]:
    """Yield what is found. Whether the table can be delivered, the relay examines when it takes it over."""
    what, names = f"table source {source}", foreign.names
    create = f"run `outbox table create --table-prefix {names.prefix} --message-table {'.'.join(foreign.table)}`"
    other = "set another table_prefix"
    try:
        with table_connection(source, names, dsn) as connection:
            if found := breaches(connection, foreign.places):
                ways = f"{create}, correct message_table, or {other}"
                yield from (Finding(what, f"{one.what}: {one.harm}", f"{one.fix}; {ways}") for one in found)
                return
            owner = connection.execute(foreign.compose(_BELONGS)).fetchone()
            is_notified = has_trigger(connection, source_name(*foreign.table))
    except ConfigurationError as error:
        yield Finding(what, str(error), remedy(error, dsn))
        return
    if owner not in {None, (source, foreign.full_name)}:
        of = "source {!r} and table {}".format(*owner)
        yield Finding(what, f"table {foreign.full_source} has the progress of {of}", other)
        return
    yield Finding(what, "", NOTIFIED[is_notified])
    report = reporter.report(source, foreign, dsn)
    for problem in report.problems:
        yield Finding(what, f"not read: {problem}", "correct it, and run this again")
    if report.condition is Condition.HALTED:
        yield Finding(what, f"halted: {report.why}", "see docs/foreign_tables.md, 'A source that stops'")
    else:
        yield Finding(what, "", f"{report.condition}, foreign table {report.table}; its rows are not examined")
    yield from examine_discarded(what, report)
