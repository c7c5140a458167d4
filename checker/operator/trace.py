"""`outbox trace`: the story of one transaction or message."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from checker.operator.options import (
    ONE_COMMAND,
    RECORDS,
    SITE_OPTIONS,
    OperatorContext,
    OperatorSettings,
    Records,
    missing_services,
    parse_id,
)
from checker.operator.row_story import RowFindings, conclude_rows
from checker.operator.search import SKEW_MS, Search, search_databases
from checker.operator.table_search import TableSearch
from checker.operator.timeline import Conclusion, Findings, Status, TimelineEvent, born_ms, conclude, folded
from checker.rules.verdicts import Row
from outbox._cli.setting_options import setting_options
from outbox._kafka.groups import NOT_SEEN
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, print_json, show_records_read, utc
from outbox._service.redaction import visible
from outbox._service.settings import NO_TABLES
from outbox.errors import KafkaUnreachable, UsageError

_OF_ROWS = "the id carries the xid of a local transaction: it is one of table mode"

_OF_SERVICES = {Status.COMMITTED, Status.UNDECIDED, Status.PARTLY_VISIBLE, Status.PARKED}
"""What a relay or a checker ends."""

app = typer.Typer(help="Show the history of a transaction or a message.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(OperatorSettings, only=SITE_OPTIONS)
def trace(
    given: dict[str, Any],
    id_: Annotated[str, typer.Argument(metavar="ID", help="Transaction id or message id.", show_default=False)],
    since: Annotated[
        str, typer.Option(help="Search from here on, such as 2026-11-22T06:00Z; by default from the time in the id.")
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option(help="Search this real topic, too, if its halves are gone; repeatable.")
    ] = None,
    records: Records = RECORDS,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Print all that databases and topics hold of it, in the order of time.

    It ends with 2 if nothing is found, and with 6 if decisions contradict each other or what readers see. Without Kafka
    it shows what the databases hold, and ends with 4.
    """
    transaction_id, position = parse_id(id_)
    start = _start(transaction_id, since)
    settings, found = OperatorSettings(**given), Findings(transaction_id, position)
    desk, silence = _desk(settings, found)
    members = NOT_SEEN if desk is None else desk.members()
    rows, own = _search_databases(settings, found, is_silent=desk is None)
    if desk is not None:
        with show_records_read() as passed:
            search = Search(desk.kafka, desk.channel, found, start, records, passed)
            if rows.applies:
                search.real_topics({*rows.topics, *(topic or ())}, rows.since_ms)
            else:
                search.topics(own, topic or ())
    if not settings.tables and not found.events:
        found.unread.append(("rows of table mode", NO_TABLES))
    conclusion = conclude_rows(found, rows) if rows.applies else conclude(found)
    if as_json:
        print_json({"channel": settings.channel} | _document(found, conclusion, start) | {"members": members})
    else:
        _show(settings.channel, found, conclusion, start)
        if conclusion.state in _OF_SERVICES and not rows.applies:
            for missing in missing_services(settings.channel_names(), members, halves=True):
                typer.echo(missing)
    if silence is not None:
        raise silence
    if conclusion.state is Status.NOT_FOUND:
        raise SystemExit(Exit.FINDINGS)
    if conclusion.state is Status.CONTRADICTION:
        raise SystemExit(Exit.CONTRADICTION)


def _desk(settings: OperatorSettings, found: Findings) -> tuple[OperatorContext | None, KafkaUnreachable | None]:
    """Return the channel as it is; if Kafka does not answer, None and why."""
    try:
        return OperatorContext(settings), None
    except KafkaUnreachable as error:
        found.unread.append(("Kafka", str(error)))
        return None, error


def _search_databases(
    settings: OperatorSettings, found: Findings, *, is_silent: bool
) -> tuple[RowFindings, Sequence[Row]]:
    """Return what message tables hold of a transaction, and its callback rows if it may be one of half mode."""
    databases = settings.all_databases()
    if not databases and not settings.tables:
        found.unread.append(("databases", "none is configured: OUTBOX_POSTGRES_URL or OUTBOX_CONFIG"))
    kafka = None if is_silent else settings.connection()
    rows = TableSearch(kafka, settings.channel_names(), found).search(settings.tables)
    if rows.applies:
        found.unread.append(("halves", _OF_ROWS))
        return rows, ()
    return rows, search_databases(databases, settings.channel, found)


def _start(transaction_id: str, since: str) -> int:
    """Where the search begins, ms since 1970."""
    if since:
        try:
            given = datetime.fromisoformat(since)
        except ValueError:
            raise UsageError(f"{since!r} is not a valid time. Write it as 2026-11-22T06:00Z.") from None
        return int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)
    born = born_ms(transaction_id)
    if born is None:
        raise UsageError(f"{transaction_id} is not a UUIDv7, so it contains no time. Give --since.")
    # An id of the future comes from a wrong clock: then it may have been made at any time.
    return max(born - SKEW_MS, 0) if born < time.time() * 1000 + SKEW_MS else 0


def _document(found: Findings, conclusion: Conclusion, start: int) -> dict[str, Any]:
    return {
        "transaction": found.transaction_id,
        "position": found.position,
        "state": str(conclusion.state),
        "conclusion": conclusion.sentence,
        "since_ms": start,
        "timeline": [
            {
                "time_ms": event.time_ms,
                "what": str(event.what),
                "place": event.place,
                "partition": event.partition,
                "offset": event.offset,
                "position": event.position,
                "detail": event.detail,
            }
            for event in found.timeline()
        ],
        "databases": found.databases,
        "searched": [
            {
                "topic": span.topic,
                "partition": span.partition,
                "from_offset": span.start,
                "to_offset": span.stop,
                "end_offset": span.end,
            }
            for span in found.searched
        ],
        "not_searched": [{"place": place, "why": why} for place, why in found.unread],
    }


def _time(event: TimelineEvent) -> str:
    if event.time_ms is None:
        return "not known"
    return utc(event.time_ms, "milliseconds")


def _show(channel: str, found: Findings, conclusion: Conclusion, start: int) -> None:
    console = PlainConsole()
    message = "" if found.position is None else f", message {found.position}"
    title = f"channel {channel}: transaction {found.transaction_id}{message}"
    table = Table("time", "what", "message", "where", "detail", title=title)
    for event in folded(found.timeline()):
        where = event.place if event.offset is None else f"{event.place}/{event.partition} at {event.offset}"
        number = "" if event.position is None else str(event.position)
        table.add_row(_time(event), event.what, number, where, event.detail)
    console.print(table)
    console.print(Text.assemble((str(conclusion.state), "bold"), f": {visible(conclusion.sentence)}"))
    databases = ", ".join(found.databases) or "none"
    read = [span for span in found.searched if span.stop > span.start]
    offsets = "offsets:" if read else "no offsets"
    console.print(f"searched from {utc(start)} on; databases: {databases}; {offsets}")
    for span in read:
        console.print(f"  {span.topic}/{span.partition}: {span.start} to {span.stop} of {span.end}")
    for place, why in found.unread:
        console.print(f"not searched: {place}: {why}")
