"""`outbox pending`: the unsettled transactions, which are undecided, or decided and not delivered yet."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from outbox._cli.setting_options import setting_options
from outbox._kafka.groups import NOT_SEEN
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, print_entry, print_json, show_records_read
from outbox._settings.declared import NO_TABLES
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.context import (
    ONE_COMMAND,
    RECORDS,
    UNITS,
    OperatorContext,
    Records,
    missing_services,
    parse_duration,
)
from outbox.operator.reading.channel_reader import ChannelReader
from outbox.operator.reading.source_report import report_tables
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.channel_state import (
    ChannelState,
    Condition,
    RefusingTopic,
    RowSeen,
    SourceState,
    WaitingTransaction,
)
from outbox.operator.state.discarded import Gap
from outbox.operator.state.unsettled_transactions import Choice, Gathering, UnsettledTransaction
from outbox.operator.state.waiting_rows import FIXES, Waits
from outbox.protocol.half import Truth

LIMIT = 100
HALVES = 500_000
"""Halves that are looked at, over all partitions; each takes about 200 bytes of memory."""

app = typer.Typer(help="Show unsettled transactions: undecided, or decided and not delivered yet.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(OperatorSettings)
def pending(
    given: dict[str, Any],
    service: Annotated[str | None, typer.Option(help="Only transactions of this service.")] = None,
    older_than: Annotated[str, typer.Option(help="Only what is older, such as 90s, 15m, 6h or 2d.")] = "0s",
    limit: Annotated[
        int, typer.Option(min=1, help="Number of transactions listed, the oldest first, and of sums.")
    ] = LIMIT,
    look: Annotated[bool, typer.Option("--look", help="Look into the databases, too; they are only read.")] = False,  # noqa: FBT002 - a flag
    records: Records = RECORDS,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """List unsettled transactions and the rows of message tables. It joins no group, and decides nothing."""
    youngest = parse_duration(older_than)
    settings, now = OperatorSettings(**given), time.time_ns() // 1_000_000
    state = ChannelState(settings.channel, now)
    desk = _context(settings, state, as_json=as_json)
    gathering = Gathering(-(-HALVES // desk.channel.partitions), Choice(None, service, now - youngest), limit)
    with show_records_read() as passed:
        unread = ChannelReader(desk.kafka, desk.channel, gathering, records, passed).gather(now)
    state.members, state.tables = desk.members(), report_tables(settings)
    state.not_read = list(unread)
    state.refusing = desk.refusing({name for one in gathering.oldest()[:limit] for name in one.targets})
    state.take(gathering, limit, _look(desk, gathering.oldest()[:limit]) if look else {})
    if as_json:
        print_json(state)
    else:
        console = PlainConsole()
        show_halves(console, state)
        for missing in missing_services(desk.channel.channel, state.members, halves=bool(state.sums)):
            console.print(missing)
        show_tables(console, state.channel, state.tables)
        if not state.tables:
            console.print(f"not looked at: rows of table mode ({NO_TABLES})")
    if any(left.is_fault for left in unread) or any(one.is_unread for one in state.tables):
        raise SystemExit(Exit.UNPROVABLE)


def _context(settings: OperatorSettings, state: ChannelState, *, as_json: bool) -> OperatorContext:
    """Return the channel and the databases; if Kafka does not answer, show the message tables all the same."""
    try:
        return OperatorContext(settings)
    except KafkaUnreachable as error:
        state.tables, state.members = report_tables(settings, is_unreachable=True), NOT_SEEN
        state.not_read = [Gap(f"channel {settings.channel}", str(error))]
        if as_json and state.tables:
            print_json(state)
        if not as_json:
            show_tables(PlainConsole(), state.channel, state.tables)
        raise


def _look(desk: OperatorContext, shown: Sequence[UnsettledTransaction]) -> dict[str, RowSeen]:
    """Return the databases' views of transactions; report a database that does not answer with its transactions."""
    by_name: dict[str | None, list[UnsettledTransaction]] = defaultdict(list)
    for one in shown:
        if one.truth is Truth.ROW:
            by_name[desk.database_of(one.service)].append(one)
    found: dict[str, RowSeen] = {}
    for name, ours in by_name.items():
        if name is None:
            found |= dict.fromkeys((one.id for one in ours), RowSeen(None, "unmapped"))
            continue
        requests = [one.request(desk.channel.half.id) for one in ours]
        try:
            seen = desk.rows(name).look(requests, frozenset(one.id for one in ours if one.parked).intersection)
        except ConfigurationError as error:
            found |= dict.fromkeys((one.id for one in ours), RowSeen(name, f"unknown: {error}"))
            continue
        found |= {id_: RowSeen(name, str(what.standing), what.holder) for id_, what in seen.items()}
    return found


_NEXT = {
    Condition.SERVED: "next to be delivered",
    Condition.HALTED: "waits until the source goes on (docs/table_mode.md, 'A source that stops')",
    Condition.NO_OWNER: "waits for a relay; the log of one that runs has why it does not serve it",
    Condition.NO_KAFKA: "waits for Kafka",
    Condition.READ_ONLY: "waits until the database takes writes",
    Condition.UNREACHABLE: "",
}
"""What rows wait for that nothing else keeps."""


def show_halves(console: Console, state: ChannelState) -> None:
    if state.sums:
        console.print(f"unsettled transactions in channel {state.channel}:")
        table = Table("service", "half partition", "undecided", "decided", "oldest", box=None)
        for one in state.sums:
            counts = (str(count) for count in (one.half_partition, one.undecided, one.decided))
            table.add_row(one.service, *counts, age(state.now_ms - one.oldest_ms))
        console.print(table)
        if state.sums_not_listed:
            console.print(f"and {state.sums_not_listed:,} more services and half partitions: --limit")
    elif not state.not_read:
        console.print(f"No unsettled transaction was found in channel {state.channel}.")
    for waiting in state.transactions:
        print_entry(console, f"{waiting.transaction}  {waiting.service}", _state(waiting), _place(waiting))
    show_refusing(console, state.refusing)
    if state.not_listed:
        console.print(f"{state.not_listed} more are not listed: --limit")
    if state.malformed_halves:
        console.print(f"{state.malformed_halves} halves cannot be parsed: a relay will discard them as MALFORMED")
    if state.discarded:
        found = ", ".join(f"{some.transactions} {some.reason}" for some in state.discarded)
        console.print(f"discarded: {found}; see `outbox discarded list`")
    for left in state.not_read:
        console.print(f"not read: {left.place} ({left.why})")


def show_refusing(console: Console, topics: Sequence[RefusingTopic]) -> None:
    """Print what transactions wait for, once they are committed."""
    for one in topics:
        print_entry(console, f"messages for {one.topic} wait: {one.reason}: {one.detail}", FIXES[one.reason])


def _place(one: WaitingTransaction) -> str:
    """Return where its messages are, and where they shall go."""
    where = "in the discard topic" if one.parked else f"half partition {one.half_partition}, offset {one.first_offset}"
    messages = f"{one.messages} message{'' if one.messages == 1 else 's'}"
    return f"{where}, {messages} for {', '.join(one.targets) or 'unknown topics'}"


def _state(one: WaitingTransaction) -> str:
    """Return age, decision, checks, and the row if it was looked up."""
    decision = f"{one.decision} by {one.decided_by}, not settled" if one.decision else "undecided"
    checks = "" if one.checks is None else f", checks: {one.checks}"
    holder = f", pid {one.holder_pid}" if one.holder_pid else ""
    row = f", row: {one.row}{holder}" if one.row else ""
    behind = f", {one.behind} behind it" if one.behind else ""
    return f"{age(one.age_ms)} old, {'disputed' if one.disputed else decision}{checks}{row}{behind}"


def show_tables(console: Console, channel: str, tables: Sequence[SourceState]) -> None:
    """Print a block for each table source of a channel."""
    for one in tables:
        where = f" from {one.owner_address}" if one.owner_address else ""
        by = f" by database session {one.owner_pid}{where}" if one.owner_pid else ""
        print_entry(console, f"channel {channel}, table source {one.source}: {one.condition}{by}", *_details(one))


def _details(one: SourceState) -> Iterator[str]:
    yield one.why or ""
    if one.condition is not Condition.UNREACHABLE:
        yield f"{one.table}: {_rows(one)}; {_progress(one)}"
    for some in one.waiting:
        why = f"{some.reason}: {some.detail}" if some.reason is not Waits.NEXT else _NEXT[one.condition]
        yield f"{some.rows} for {some.topic}, {age(some.age_ms)}: {why}"
    if one.discarded:
        counts = ", ".join(f"{some.rows} {some.reason}" for some in one.discarded)
        yield f"discarded: {counts}; see {'docs/foreign_tables.md' if one.foreign else '`outbox discarded list`'}"
    for problem in one.not_read:
        yield f"not read: {problem}"


def _rows(one: SourceState) -> str:
    if one.foreign:
        return "a foreign table, whose rows are not counted"
    oldest = "" if one.age_ms is None else f", the oldest {age(one.age_ms)} old"
    return f"{one.rows} row{'' if one.rows == 1 else 's'}{' or more' if one.more_rows else ''}{oldest}"


def _progress(one: SourceState) -> str:
    if one.batch is None:
        return "it was never served"
    none = "no progress of Kafka" if one.kafka_read else "Kafka's batch is not known"
    kafka = none if one.kafka_batch is None else f"Kafka has batch {one.kafka_batch}"
    batch = f"batch {one.batch}, delivered {one.delivered}, {kafka}"
    return f"{batch}; {one.in_delivery} rows in delivery" if one.in_delivery else batch


def age(ms: int) -> str:
    for name in ("d", "h", "m"):
        if ms >= 2 * UNITS[name]:
            return f"{ms // UNITS[name]}{name}"
    return f"{ms // 1_000}s"
