"""Message tables as `outbox pending` shows them: how many rows wait in each, since when, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from checker.operator.options import UNITS, OperatorSettings
from outbox._operations.source_report import ROWS, Condition, SourceReport, SourceReporter
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._rules.waiting_rows import Waits
from outbox._service.output import print_entry
from outbox._service.settings import TableSettings

_NEXT = {
    Condition.SERVED: "next to be delivered",
    Condition.HALTED: "waits for `outbox table resume`",
    Condition.NO_OWNER: "waits for a relay",
    Condition.NO_KAFKA: "waits for Kafka",
    Condition.READ_ONLY: "waits until the database takes writes",
    Condition.UNREACHABLE: "",
}
"""What rows wait for that nothing else keeps."""


def report_tables(settings: OperatorSettings, *, is_unreachable: bool = False) -> list[SourceReport]:
    """Return the states of all table sources of the settings; what does not answer is part of them.

    Args:
        is_unreachable: Whether Kafka did not answer, so that it is not asked again.
    """
    reporter = SourceReporter(settings.connection(), settings.channel_names(), is_unreachable=is_unreachable)
    return [reporter.report(name, _table(one), one.connection_string()) for name, one in settings.tables.items()]


def _table(settings: TableSettings) -> MessageTable | ForeignSource:
    names = settings.names()
    return ForeignSource(names, settings.foreign_name()) if settings.is_foreign else MessageTable(names)


def table_fields(found: SourceReport) -> dict[str, Any]:
    """Return a source for programs."""
    progress, committed = found.progress, found.committed
    return {
        "source": found.source,
        "table": found.table,
        "condition": str(found.condition),
        "why": found.why or None,
        "owner_pid": found.owner.pid if found.owner else None,
        "owner_address": found.owner.address if found.owner else None,
        "rows": found.rows if found.now_ms and found.is_counted else None,
        "more_rows": found.rows >= ROWS,
        "age_ms": found.oldest_ms,
        "batch": progress.batch if progress else None,
        "delivered": progress.delivered if progress else None,
        "kafka_batch": committed.batch if committed else None,
        "in_delivery": found.in_delivery,
        "waiting": [
            {
                "topic": one.topic,
                "reason": str(one.why),
                "detail": one.detail or None,
                "rows": one.rows,
                "age_ms": _age_ms(found, one.started_us),
            }
            for one in found.waiting
        ],
        "discarded": [
            {"reason": one.reason, "rows": one.rows, "discarded_ms": one.since_ms} for one in found.discarded
        ],
        "not_read": found.problems,
    }


def show_tables(console: Console, channel: str, reports: Sequence[SourceReport]) -> None:
    """Print a block for each source of a channel."""
    for found in reports:
        print_entry(console, _head(channel, found), *_details(found))


def _head(channel: str, found: SourceReport) -> str:
    owner = found.owner
    where = f" from {owner.address}" if owner and owner.address else ""
    by = f" by database session {owner.pid}{where}" if owner else ""
    return f"channel {channel}, table source {found.source}: {found.condition}{by}"


def _details(found: SourceReport) -> Iterator[str]:
    yield found.why
    if found.now_ms:
        yield f"{found.table}: {_rows(found)}; {_progress(found)}"
    for one in found.waiting:
        why = f"{one.why}: {one.detail}" if one.why is not Waits.NEXT else _NEXT[found.condition]
        yield f"{one.rows} for {one.topic}, {age(_age_ms(found, one.started_us))}: {why}"
    if found.discarded:
        counts = ", ".join(f"{one.rows} {one.reason}" for one in found.discarded)
        where = "`outbox discarded list`" if found.is_counted else "docs/foreign_tables.md"
        yield f"discarded: {counts}; see {where}"
    for problem in found.problems:
        yield f"not read: {problem}"


def _rows(found: SourceReport) -> str:
    if not found.is_counted:
        return "a foreign table, whose rows are not counted"
    more = " or more" if found.rows >= ROWS else ""
    oldest = "" if found.oldest_ms is None else f", the oldest {age(found.oldest_ms)} old"
    return f"{found.rows} row{'' if found.rows == 1 else 's'}{more}{oldest}"


def _progress(found: SourceReport) -> str:
    if found.progress is None:
        return "it was never served"
    none = "no progress of Kafka" if found.is_compared else "Kafka's batch is not known"
    kafka = f"Kafka has batch {found.committed.batch}" if found.committed else none
    batch = f"batch {found.progress.batch}, delivered {found.progress.delivered}, {kafka}"
    return f"{batch}; {found.in_delivery} rows in delivery" if found.in_delivery else batch


def _age_ms(found: SourceReport, started_us: int) -> int:
    return max(found.now_ms - started_us // 1_000, 0)


def age(ms: int) -> str:
    """Return an age for people."""
    for name in ("d", "h", "m"):
        if ms >= 2 * UNITS[name]:
            return f"{ms // UNITS[name]}{name}"
    return f"{ms // 1_000}s"


def is_unread(found: SourceReport) -> bool:
    """Return whether something of a source could not be read."""
    return bool(found.problems) or not found.now_ms
