"""`outbox pending`: the unsettled transactions, which are undecided, or decided and not delivered yet."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from outbox._cli.setting_options import setting_options
from outbox._kafka.groups import NOT_SEEN
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, print_json, show_records_read
from outbox._settings.declared import NO_TABLES
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.commands.channel_text import show_halves, show_tables
from outbox.operator.context import (
    ONE_COMMAND,
    RECORDS,
    OperatorContext,
    Records,
    missing_services,
    parse_duration,
)
from outbox.operator.reading.channel_reader import ChannelReader
from outbox.operator.reading.source_report import report_tables
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.channel_state import ChannelState, RowSeen
from outbox.operator.state.gap import Gap
from outbox.operator.state.unsettled_transactions import Choice, Gathering, UnsettledTransaction
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
