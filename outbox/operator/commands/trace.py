"""`outbox trace`: the story of one transaction or message."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from outbox._cli.setting_options import setting_options
from outbox._kafka.groups import NOT_SEEN
from outbox._rules.callback_row import Row
from outbox._security.redaction import visible
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, print_json, show_records_read, utc
from outbox._settings.declared import NO_TABLES
from outbox.errors import KafkaUnreachable, UsageError
from outbox.operator.commands.pending import show_refusing
from outbox.operator.context import (
    ONE_COMMAND,
    RECORDS,
    OperatorContext,
    Records,
    missing_services,
    parse_id,
    parse_since,
)
from outbox.operator.reading.search import SKEW_MS, TableSearch, TopicSearch, search_databases
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.story import Conclusion, Findings, Status, born_ms, conclude, folded

_OF_ROWS = "the id carries the xid of a local transaction: it is one of table mode"

_OF_SERVICES = {Status.COMMITTED, Status.UNDECIDED, Status.PARTLY_VISIBLE, Status.PARKED}
"""What a relay or a checker ends."""

app = typer.Typer(help="Show the history of a transaction or a message.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(OperatorSettings)
def trace(
    given: dict[str, Any],
    id_: Annotated[str, typer.Argument(metavar="ID", help="Transaction id or message id.", show_default=False)],
    since: Annotated[
        str, typer.Option(help="Search from here on: a time, or 2h before now; by default the time in the id.")
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option(help="Search this real topic, too, if its halves are gone; repeatable.")
    ] = None,
    records: Records = RECORDS,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Print all that databases and topics hold of it, in the order of time.

    It ends with 2 if nothing is found, with 3 if something could not be read besides, and with 6 if decisions
    contradict each other or what readers see. Without Kafka it shows what the databases hold, and ends with 4.
    """
    transaction_id, position = parse_id(id_)
    start = _start(transaction_id, since)
    settings, found = OperatorSettings(**given), Findings(transaction_id, position)
    desk, silence = _desk(settings, found)
    members = NOT_SEEN if desk is None else desk.members()
    own = _search_databases(settings, found, is_silent=desk is None)
    if desk is not None:
        with show_records_read() as passed:
            search = TopicSearch(desk.kafka, desk.channel, found, start, records, passed)
            if found.is_of_rows:
                search.real_topics(topic or ())
            else:
                search.topics(own, topic or ())
    if not settings.tables and not found.events:
        found.miss("rows of table mode", NO_TABLES)
    conclusion = conclude(found)
    waits = desk is not None and conclusion.state in _OF_SERVICES and not found.is_of_rows
    refusing = desk.refusing(found.topics) if desk is not None and waits else []
    if as_json:
        more = {"members": members, "refusing": refusing}
        print_json(_document(settings.channel, found, conclusion, start) | more)
    else:
        _show(settings.channel, found, conclusion, start)
        if conclusion.state in _OF_SERVICES and not found.is_of_rows:
            show_refusing(PlainConsole(), refusing)
            for missing in missing_services(settings.channel_names(), members, halves=True):
                typer.echo(missing)
    if silence is not None:
        raise silence
    if conclusion.state is Status.NOT_FOUND:
        raise SystemExit(Exit.UNPROVABLE if any(gap.is_fault for gap in found.unread) else Exit.FINDINGS)
    if conclusion.state is Status.CONTRADICTION:
        raise SystemExit(Exit.CONTRADICTION)


def _desk(settings: OperatorSettings, found: Findings) -> tuple[OperatorContext | None, KafkaUnreachable | None]:
    """Return the channel as it is; if Kafka does not answer, None and why."""
    try:
        return OperatorContext(settings), None
    except KafkaUnreachable as error:
        found.miss("Kafka", str(error))
        return None, error


def _search_databases(settings: OperatorSettings, found: Findings, *, is_silent: bool) -> Sequence[Row]:
    """Note what message tables hold of a transaction; return its callback rows if it may be one of half mode."""
    databases = settings.all_databases()
    if not databases and not settings.tables:
        found.miss("databases", "none is configured: OUTBOX_POSTGRES_URL or OUTBOX_CONFIG")
    kafka = None if is_silent else settings.client_properties()
    TableSearch(kafka, settings.channel_names(), found).search(settings.tables)
    if found.is_of_rows:
        found.miss("halves", _OF_ROWS)
        return ()
    return search_databases(databases, settings.channel, found)


def _start(transaction_id: str, since: str) -> int:
    """Where the search begins, ms since 1970."""
    if since:
        return parse_since(since, time.time_ns() // 1_000_000)
    born = born_ms(transaction_id)
    if born is None:
        raise UsageError(f"{transaction_id} is not a UUIDv7, so it contains no time. Give --since.")
    # An id of the future comes from a wrong clock: then it may have been made at any time.
    return max(born - SKEW_MS, 0) if born < time.time() * 1000 + SKEW_MS else 0


def _document(channel: str, found: Findings, conclusion: Conclusion, start: int) -> dict[str, Any]:
    return {
        "channel": channel,
        "transaction": found.transaction_id,
        "position": found.position,
        "state": conclusion.state,
        "conclusion": conclusion.sentence,
        "since_ms": start,
        "timeline": found.timeline(),
        "databases": found.databases,
        "searched": found.searched,
        "not_searched": found.unread,
    }


def _show(channel: str, found: Findings, conclusion: Conclusion, start: int) -> None:
    console = PlainConsole()
    message = "" if found.position is None else f", message {found.position}"
    title = f"channel {channel}: transaction {found.transaction_id}{message}"
    table = Table("time", "what", "message", "where", "detail", title=title)
    for event in folded(found.timeline()):
        where = event.place if event.offset is None else f"{event.place}/{event.partition} at {event.offset}"
        number = "" if event.position is None else str(event.position)
        time_ = "not known" if event.time_ms is None else utc(event.time_ms, "milliseconds")
        table.add_row(time_, event.what, number, where, event.detail)
    console.print(table)
    console.print(Text.assemble((str(conclusion.state), "bold"), f": {visible(conclusion.sentence)}"))
    databases = ", ".join(found.databases) or "none"
    read = [span for span in found.searched if span.to_offset > span.from_offset]
    offsets = "offsets:" if read else "no offsets"
    console.print(f"searched from {utc(start)} on; databases: {databases}; {offsets}")
    for span in read:
        console.print(f"  {span.topic}/{span.partition}: {span.from_offset} to {span.to_offset} of {span.end_offset}")
    for gap in found.unread:
        console.print(f"not searched: {gap}")
