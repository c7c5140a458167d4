"""The state of a channel for people: unsettled transactions, and the rows of each table source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from outbox._service.output import print_entry
from outbox.operator.context import UNITS
from outbox.operator.state.channel_state import ChannelState, Condition, RefusingTopic, SourceState, WaitingTransaction
from outbox.operator.state.waiting_rows import FIXES, Waits

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
    """Print what a channel holds of halves."""
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
    """Return an age for people."""
    for name in ("d", "h", "m"):
        if ms >= 2 * UNITS[name]:
            return f"{ms // UNITS[name]}{name}"
    return f"{ms // 1_000}s"
