"""`outbox discarded`: transactions that were not delivered, halves or rows, and an operator's decisions on them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any

import typer
from rich.table import Table

from outbox._cli.discard_stores import Entry, HalfEntry, RowEntry, Store, TableStore, TopicStore
from outbox._cli.options import DecisionSettings, Given, TableCommandSettings
from outbox._cli.setting_options import setting_options
from outbox._operations.discard_topic import Discarded, DiscardedMessage
from outbox._operations.discarded_rows import DiscardedMessageRow
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, may_ask, print_entry, print_json, print_json_rows, utc
from outbox._service.settings import NO_TABLES
from outbox.errors import ConfigurationError, OutboxError, UsageError
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind

LOOK_SECONDS = 0.5
LIMIT = 100
"""Transactions that are listed for people."""

app = typer.Typer(help="Transactions that were not delivered: list, show, deliver, drop.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Transaction ids.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All transactions, limited by --group and --reason.")]
Group = Annotated[str | None, typer.Option(help="Only transactions of this producer group.")]
Reason = Annotated[DiscardReason | None, typer.Option(help="Only transactions with this reason.", case_sensitive=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be decided.")]
Comment = Annotated[str, typer.Option(help="Comment; stored in the op topic with your name. Not stored for rows.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help=f"Show no more transactions. Default: {LIMIT}, and all with --json.", show_default=False),
]
Wait = Annotated[
    float, typer.Option("--wait-seconds", "--wait", min=0, help="Seconds to wait until a relay has done it.")
]


@app.command("list")
@setting_options(TableCommandSettings)
def list_command(
    given: Given,
    group: Group = None,
    reason: Reason = None,
    limit: Limit = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """List the discarded transactions and their reasons, one at a time."""
    places = _Places(TableCommandSettings(**given))
    chosen = _Choice(None, every=True, group=group, reason=reason).of(places.read())
    if as_json:
        rows = (entry.fields() for entry in islice(chosen, limit))
        rest = lambda: {"not_listed": _count(chosen), "not_read": places.unread()}  # noqa: E731 - a last word
        print_json_rows({"channel": places.name}, "transactions", rows, rest)
    else:
        _show_list(chosen, limit or LIMIT, places.name)
        if not places.tables:
            PlainConsole().print(f"not looked at: rows of table mode ({NO_TABLES})")
    if places.unread():
        raise SystemExit(Exit.UNPROVABLE)


@app.command()
@setting_options(TableCommandSettings)
def show(
    transaction: Annotated[str, typer.Argument(help="Transaction id.")],
    given: Given,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Show one: all that is known of it but the content of its messages."""
    places = _Places(TableCommandSettings(**given))
    transaction = _transaction(transaction)
    found = places.topic.read_one(transaction)
    rows = [] if found else places.rows_of(transaction)
    if as_json:
        print_json({"channel": places.name, **(_half_document(found) if found else _row_document(rows))})
    elif found:
        _show_one(found)
    else:
        for one in rows:
            _show_rows(*one)


def _half_document(found: Discarded) -> dict[str, Any]:
    return {**HalfEntry(found.manifest).fields(), "halves": [_message_fields(*half) for half in found.halves()]}


def _row_document(found: Sequence[tuple[RowEntry, Sequence[DiscardedMessageRow]]]) -> dict[str, Any]:
    """Return a transaction for programs; its rows of further producer groups are listed with those of the first."""
    return {**found[0][0].fields(), "rows": [_row_fields(row) for _, some in found for row in some]}


def _add_decision(name: str, kind: OpKind, meaning: str) -> None:
    @app.command(name, help=f"{meaning}; ends with 2 if something stays.")
    @setting_options(DecisionSettings)
    def command(
        given: Given,
        transactions: Ids = None,
        every: All = False,  # noqa: FBT002 - a flag
        group: Group = None,
        reason: Reason = None,
        dry_run: DryRun = False,  # noqa: FBT002 - a flag
        yes: Yes = False,  # noqa: FBT002 - a flag
        comment: Comment = "",
        wait: Wait = 10.0,
        as_json: Json = False,  # noqa: FBT002 - a flag
    ) -> None:
        ids = [_transaction(one) for one in transactions or ()]
        choice, manner = _Choice(ids, every, group, reason), _Manner(yes, dry_run, comment, wait, as_json)
        settings = DecisionSettings(**given)
        may_ask(yes=yes or dry_run, as_json=as_json)
        choice.check()
        _decide(kind, _Places(settings, settings.operator), choice, manner)


_add_decision("deliver", OpKind.DELIVER, "Let pre-flight look again, and deliver what it does not refuse")
_add_decision("drop", OpKind.ROLLBACK, "Remove for good what shall never be delivered")

_CONSEQUENCES = {
    OpKind.DELIVER: "be delivered out of their order, unless pre-flight refuses them again",
    OpKind.ROLLBACK: "be removed for good although they committed in the database: no consumer will receive them",
}
_LATE = "; halves get the header outbox-late"
_ROWS_BACK = "; {} of them are rows, which go back into their message table with new ids, behind all that wait there"


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which transactions."""

    ids: Sequence[str] | None = None
    every: bool = False
    group: str | None = None
    reason: DiscardReason | None = None

    def check(self) -> None:
        """Check that it names transactions, or all."""
        if bool(self.ids) == self.every:
            raise UsageError("Either name transactions or give --all. --group and --reason limit --all.")

    def of(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Return what is chosen, one at a time."""
        ids = frozenset(self.ids or ())
        return (
            entry
            for entry in entries
            if (self.every or entry.transaction_id in ids)
            and self.group in {None, entry.group}
            and self.reason in {None, entry.reason}
        )


def _transaction(id_: str) -> str:
    """Return the transaction of a message id: a transaction is decided as a whole."""
    return id_.strip().partition("/")[0]


def _not_there(ids: Iterable[str], unread: Sequence[str]) -> OutboxError:
    """Return the error that transactions are nowhere, or may be where nothing could be read."""
    named = ", ".join(ids)
    if unread:
        return ConfigurationError(f"transaction {named} was not found; {', '.join(unread)} could not be read")
    return UsageError(f"transaction {named} is not in the discard topic, nor in a table of discarded messages")


@dataclass(frozen=True, slots=True)
class _Manner:
    """How."""

    yes: bool
    dry_run: bool
    comment: str
    wait: float
    as_json: bool


class _Places:
    """All places with discarded transactions: the discard topic of a channel, and its message tables."""

    def __init__(self, settings: TableCommandSettings, operator: str = "") -> None:
        self.name = settings.channel
        self.topic = TopicStore(settings, operator)
        self.tables = [TableStore(source, table) for source, table in settings.tables.items()]

    def stores(self) -> list[Store]:
        """Return all."""
        return [self.topic, *self.tables]

    def unread(self) -> list[str]:
        """Return what could not be read."""
        return sorted(place for store in self.stores() for place in store.unread)

    def read(self) -> Iterator[Entry]:
        """Yield what is there now, one at a time."""
        return chain.from_iterable(store.read() for store in self.stores())

    def chosen(self, choice: _Choice) -> dict[Store, list[Entry]]:
        """Return what is chosen, by place."""
        ids = frozenset(choice.ids or ())
        named = {
            store: [entry for entry in store.read() if choice.every or entry.transaction_id in ids]
            for store in self.stores()
        }
        if missing := sorted(ids - {entry.transaction_id for some in named.values() for entry in some}):
            raise _not_there(missing, self.unread())
        return {store: list(choice.of(some)) for store, some in named.items()}

    def rows_of(self, transaction_id: str) -> list[tuple[RowEntry, list[DiscardedMessageRow]]]:
        """Return a transaction whose rows are discarded, for each of its producer groups."""
        found = [
            (entry, table.messages(entry))
            for table in self.tables
            for entry in list(table.read())
            if entry.transaction_id == transaction_id
        ]
        if not found:
            raise _not_there([transaction_id], self.unread())
        return found


def _decide(kind: OpKind, places: _Places, choice: _Choice, manner: _Manner) -> None:
    """Decide on what may be decided."""
    chosen = places.chosen(choice)
    able = {store: [entry for entry in some if not entry.why_not(kind)] for store, some in chosen.items()}
    everything, count = list(chain(*chosen.values())), sum(map(len, able.values()))
    if not manner.as_json:
        _show(everything, _intention(list(chain(*able.values())), kind), kind)
    left: list[Entry] = []
    decided = count > 0 and not manner.dry_run and (manner.yes or typer.confirm("Go on?"))
    if decided:
        for store, some in able.items():
            if some:
                store.decide(some, kind, manner.comment)
        if not manner.as_json:
            _show_new_ids(able)
        left = _await(able, manner.wait)
        if not manner.as_json:
            _report(kind, count, left)
    if manner.as_json:
        print_json(_document(places, chosen, kind, left, is_dry=not decided))
    if left or count < len(everything) or (choice.every and places.unread()):
        raise SystemExit(Exit.FINDINGS)


def _intention(able: Sequence[Entry], kind: OpKind) -> str:
    messages = sum(entry.messages for entry in able)
    rows = sum(isinstance(entry, RowEntry) for entry in able)
    late, back = (_LATE if rows < len(able) else "", _ROWS_BACK.format(rows) if rows else "")
    more = f"{late}{back}" if kind is OpKind.DELIVER else ""
    return f"{len(able)} transactions, {messages} messages, will {_CONSEQUENCES[kind]}{more}"


def _await(decided: Mapping[Store, Sequence[Entry]], seconds: float) -> list[Entry]:
    """Look until a relay has done it; return what still is there."""
    deadline = time.monotonic() + seconds
    while True:
        left = [entry for store, some in decided.items() if some for entry in store.left(some)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(LOOK_SECONDS)


def _show_new_ids(decided: Mapping[Store, Sequence[Entry]]) -> None:
    """Print the new id of each message that is back in a message table; nothing else keeps the two together."""
    for store, some in decided.items():
        for entry in some:
            for former, new in store.more_fields(entry).get("new_messages", {}).items():
                typer.echo(f"{former} is now {new}")


def _report(kind: OpKind, count: int, left: Sequence[Entry]) -> None:
    done = "were delivered" if kind is OpKind.DELIVER else "were dropped"
    typer.echo(f"{count - len(left)} of {count} have left the discard topic and the tables: they {done}")
    if left:
        _show(left, "still there: refused again, or no relay has come to them yet")


def _document(
    places: _Places, chosen: Mapping[Store, Sequence[Entry]], kind: OpKind, left: Sequence[Entry], *, is_dry: bool
) -> dict[str, Any]:
    """Return what became of each, for programs."""
    there = {(entry.transaction_id, entry.group) for entry in left}

    def outcome(entry: Entry) -> str:
        if entry.why_not(kind):
            return "refused"
        if is_dry:
            return "possible"
        return "still there" if (entry.transaction_id, entry.group) in there else "left"

    transactions = [
        {
            **entry.fields(),
            "outcome": outcome(entry),
            "why": entry.why_not(kind) or None,
            **store.more_fields(entry),
        }
        for store, some in chosen.items()
        for entry in some
    ]
    return {"channel": places.name, "decision": kind.name, "transactions": transactions}


# --- tables -----------------------------------------------------------------------------------------------------------


def _show_list(chosen: Iterator[Entry], limit: int, channel: str) -> None:
    listed = list(islice(chosen, limit))
    _show(listed, f"discarded transactions of channel {channel}")
    if not listed:
        PlainConsole().print(f"No discarded transaction was found in channel {channel}.")
    elif more := _count(chosen):
        PlainConsole().print(f"{more} more are not listed: --limit")


def _show(entries: Sequence[Entry], title: str, kind: OpKind | None = None) -> None:
    """Print two or three lines for each, none of which needs more than 80 columns for ordinary names."""
    if not entries:
        return
    console = PlainConsole()
    console.print(title)
    for entry in entries:
        refusal = entry.why_not(kind) if kind else ""
        count = entry.messages
        print_entry(
            console,
            f"{entry.transaction_id}  {entry.group}  {entry.reason}",
            f"{count} message{'' if count == 1 else 's'}, {entry.where()}",
            f"NOT THIS ONE: {refusal}" if refusal else entry.detail,
        )


def _count(left: Iterable[Entry]) -> int:
    return sum(1 for _ in left)


def _show_one(found: Discarded) -> None:
    manifest = found.manifest
    table = Table(show_header=False, title=f"transaction {manifest.transaction_id}")
    decision = manifest.decision.name if manifest.decision else "none"
    for name, value in (
        ("group", manifest.group),
        ("reason", manifest.reason),
        ("detail", manifest.detail),
        ("decision", decision),
        ("half partition", manifest.partition),
        ("positions that count", manifest.positions),
        ("first appended", utc(manifest.first_append_time)),
        ("UNKNOWN answers", manifest.checks),
        ("last answer", manifest.last_answer),
    ):
        table.add_row(name, str(value))
    PlainConsole().print(table)
    messages = Table("position", "half offset", "target", "key", "bytes")
    for position, offset, message in found.halves():
        what = (message.target, "yes" if message.has_key else "no", str(message.size)) if message else ("?", "?", "?")
        messages.add_row(str(position), str(offset), *what)
    PlainConsole().print(messages)


def _show_rows(entry: RowEntry, rows: Sequence[DiscardedMessageRow]) -> None:
    table = Table(show_header=False, title=f"transaction {entry.transaction_id}")
    for name, value in (
        ("group", entry.group),
        ("reason", entry.reason),
        ("detail", entry.detail),
        ("table source", entry.source),
        ("local transaction began", utc(entry.rows.started_ms)),
        ("discarded", utc(entry.rows.discarded_ms)),
    ):
        table.add_row(name, str(value))
    PlainConsole().print(table)
    messages = Table("row", "target", "key", "bytes")
    for row in rows:
        messages.add_row(str(row.id), row.target, "yes" if row.has_key else "no", str(row.size))
    PlainConsole().print(messages)


def _message_fields(position: int, offset: int, message: DiscardedMessage | None) -> dict[str, Any]:
    return {
        "position": position,
        "half_offset": offset,
        "target": message.target if message else None,
        "has_key": message.has_key if message else None,
        "bytes": message.size if message else None,
    }


def _row_fields(row: DiscardedMessageRow) -> dict[str, Any]:
    return {"row": row.id, "target": row.target, "has_key": row.has_key, "bytes": row.size}
