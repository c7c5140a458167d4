"""`outbox pending`: the unsettled transactions, which are undecided, or decided and not delivered yet."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from checker.operator.channel_reader import ChannelReader, Unread
from checker.operator.database_view import database_of
from checker.operator.options import (
    ONE_COMMAND,
    RECORDS,
    SITE_OPTIONS,
    OperatorContext,
    OperatorSettings,
    Records,
    missing_services,
    parse_duration,
)
from checker.operator.table_sources import age, is_unread, report_tables, show_tables, table_fields
from checker.operator.unsettled_transactions import Choice, Gathering, UnsettledTransaction
from outbox._cli.setting_options import setting_options
from outbox._kafka.groups import NOT_SEEN
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, print_entry, print_json, show_records_read
from outbox._service.settings import NO_TABLES
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.half import Truth

LIMIT = 100
HALVES = 500_000
"""Halves that are looked at, over all partitions; each takes about 200 bytes of memory."""

app = typer.Typer(help="Show unsettled transactions: undecided, or decided and not delivered yet.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(OperatorSettings, only=SITE_OPTIONS)
def pending(
    given: dict[str, Any],
    group: Annotated[str | None, typer.Option(help="Only transactions of this producer group.")] = None,
    older_than: Annotated[str, typer.Option(help="Only what is older, such as 90s, 15m, 6h or 2d.")] = "0s",
    limit: Annotated[int, typer.Option(min=1, help="Number of transactions listed, the oldest first.")] = LIMIT,
    look: Annotated[bool, typer.Option("--look", help="Look into the databases, too; they are only read.")] = False,  # noqa: FBT002 - a flag
    records: Records = RECORDS,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """List unsettled transactions and the rows of message tables. It joins no group, and decides nothing."""
    youngest = parse_duration(older_than)
    settings, now = OperatorSettings(**given), time.time_ns() // 1_000_000
    desk = _context(settings, now, as_json=as_json)
    most = -(-HALVES // desk.channel.partitions)
    gathering = Gathering(most, Choice(None, group, now - youngest), limit)
    with show_records_read() as passed:
        unread = ChannelReader(desk.kafka, desk.channel, gathering, records, passed).gather(now)
    members = desk.members()
    shown, tables = gathering.oldest()[:limit], report_tables(settings)
    rows = _look(desk, shown) if look else {}
    document = {
        "channel": desk.channel.channel.name,
        "now_ms": now,
        "sums": [
            {"group": place[0], "half_partition": place[1], "undecided": sum_.undecided, "decided": sum_.decided}
            | {"oldest_ms": sum_.oldest}
            for place, sum_ in sorted(gathering.sums.items())
        ],
        "transactions": [_fields(one, now) | {"behind": gathering.behind(one)} | rows.get(one.id, {}) for one in shown],
        "not_listed": gathering.total() - len(shown),
        "malformed_halves": gathering.malformed,
        "not_read": [{"place": left.place, "why": left.why} for left in unread],
        "members": members,
        "tables": [table_fields(one) for one in tables],
    }
    if as_json:
        print_json(document)
    else:
        _show(document, unread)
        for missing in missing_services(desk.channel.channel, members, halves=bool(gathering.sums)):
            PlainConsole().print(missing)
        show_tables(PlainConsole(), desk.channel.channel.name, tables)
        if not tables:
            PlainConsole().print(f"not looked at: rows of table mode ({NO_TABLES})")
    if any(left.is_fault for left in unread) or any(map(is_unread, tables)):
        raise SystemExit(Exit.UNPROVABLE)


def _context(settings: OperatorSettings, now: int, *, as_json: bool) -> OperatorContext:
    """Return the channel and the databases; if Kafka does not answer, show the message tables all the same."""
    try:
        return OperatorContext(settings)
    except KafkaUnreachable as error:
        tables = report_tables(settings, is_unreachable=True)
        if as_json and tables:
            lists: dict[str, Any] = {"sums": [], "transactions": [], "not_listed": 0, "malformed_halves": 0}
            unread = [{"place": f"channel {settings.channel}", "why": str(error)}]
            head = {"channel": settings.channel, "now_ms": now, **lists, "not_read": unread, "members": NOT_SEEN}
            print_json({**head, "tables": [table_fields(one) for one in tables]})
        if not as_json:
            show_tables(PlainConsole(), settings.channel, tables)
        raise


def _look(desk: OperatorContext, shown: Sequence[UnsettledTransaction]) -> dict[str, dict[str, Any]]:
    """Return the databases' views of transactions; report a database that does not answer with its transactions."""
    by_name: dict[str | None, list[UnsettledTransaction]] = defaultdict(list)
    for one in shown:
        if one.truth is Truth.ROW:
            by_name[database_of(one.request(desk.channel.half.id), desk.databases)].append(one)
    found: dict[str, dict[str, Any]] = {}
    for name, ours in by_name.items():
        if name is None:
            found |= {one.id: {"database": None, "row": "unmapped", "holder_pid": None} for one in ours}
            continue
        requests = [one.request(desk.channel.half.id) for one in ours]
        try:
            seen = desk.rows(name).look(requests, frozenset(one.id for one in ours if one.parked))
        except ConfigurationError as error:
            found |= {one.id: {"database": name, "row": f"unknown: {error}", "holder_pid": None} for one in ours}
            continue
        found |= {
            id_: {"database": name, "row": str(what.standing), "holder_pid": what.holder} for id_, what in seen.items()
        }
    return found


def _fields(one: UnsettledTransaction, now: int) -> dict[str, Any]:
    decision = one.decision
    return {
        "transaction": one.id,
        "group": one.group,
        "truth": str(one.truth),
        "half_partition": one.partition,
        "first_offset": one.first_offset,
        "last_offset": one.last_offset,
        "messages": len(one.offsets),
        "targets": sorted(one.targets),
        "appended_ms": one.first_append_time,
        "age_ms": max(now - one.first_append_time, 0),
        "parked": one.parked,
        "decision": decision.kind.name if decision else None,
        "decided_by": str(decision.source) if decision else None,
        "decided_ms": decision.append_time if decision else None,
        "op_offset": decision.offset if decision else None,
        "disputed": one.disputed,
        "checks": one.checks or None,
        "last_asked_ms": one.last_asked or None,
    }


# --- tables -----------------------------------------------------------------------------------------------------------


def _show(document: Mapping[str, Any], unread: Sequence[Unread]) -> None:
    console = PlainConsole()
    if document["sums"]:
        console.print(f"unsettled transactions in channel {document['channel']}:")
        console.print(_totals(document))
    elif not unread:
        console.print(f"No unsettled transaction was found in channel {document['channel']}.")
    for one in document["transactions"]:
        print_entry(console, f"{one['transaction']}  {one['group']}", _state(one), _place(one))
    if document["not_listed"]:
        console.print(f"{document['not_listed']} more are not listed: --limit")
    if document["malformed_halves"]:
        console.print(f"{document['malformed_halves']} halves cannot be parsed: a relay will discard them as MALFORMED")
    for left in unread:
        console.print(f"not read: {left.place} ({left.why})")


def _totals(document: Mapping[str, Any]) -> Table:
    table = Table("group", "half partition", "undecided", "decided", "oldest", box=None)
    for sum_ in document["sums"]:
        counts = (str(sum_[name]) for name in ("half_partition", "undecided", "decided"))
        table.add_row(sum_["group"], *counts, age(document["now_ms"] - sum_["oldest_ms"]))
    return table


def _place(one: Mapping[str, Any]) -> str:
    """Return where its messages are, and where they shall go."""
    where = (
        "in the discard topic"
        if one["parked"]
        else f"half partition {one['half_partition']}, offset {one['first_offset']}"
    )
    messages = f"{one['messages']} message{'' if one['messages'] == 1 else 's'}"
    return f"{where}, {messages} for {', '.join(one['targets']) or 'unknown topics'}"


def _state(one: Mapping[str, Any]) -> str:
    """Return age, decision, checks, and the row if it was looked up."""
    if one["disputed"]:
        decision = "disputed"
    elif one["decision"]:
        decision = f"{one['decision']} by {one['decided_by']}, not settled"
    else:
        decision = "undecided"
    checks = "" if one["checks"] is None else f", checks: {one['checks']}"
    holder = f", pid {one['holder_pid']}" if one.get("holder_pid") else ""
    row = f", row: {one['row']}{holder}" if "row" in one else ""
    behind = f", {one['behind']} behind it" if one["behind"] else ""
    return f"{age(one['age_ms'])} old, {decision}{checks}{row}{behind}"
