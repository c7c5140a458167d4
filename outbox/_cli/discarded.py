"""`outbox discarded`: what is in the discard topic, and an operator's decisions on it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import typer
from confluent_kafka import Message
from rich.table import Table

from outbox._cli.options import ChannelSettings, Given, connection
from outbox._cli.setting_options import setting_options
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._operations.discard_topic import (
    Discarded,
    DiscardedMessage,
    decide,
    read_discarded,
    read_manifests,
    why_not,
)
from outbox._service.exit_codes import Exit, warn
from outbox._service.output import Json, PlainConsole, may_ask, print_entry, print_json, print_json_rows, signed, utc
from outbox.errors import UsageError
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.op import OpKind

LOOK_SECONDS = 0.5
LIMIT = 100
"""Transactions that are listed for people."""

app = typer.Typer(help="Transactions in the discard topic: list, show, deliver, drop.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Transaction ids.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All that --group and --reason leave.")]
Group = Annotated[str | None, typer.Option(help="Only of this producer group.")]
Reason = Annotated[DiscardReason | None, typer.Option(help="Only with this reason.", case_sensitive=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Comment = Annotated[str, typer.Option(help="Why; it goes into the op topic with your name.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help=f"Show no more transactions. Default: {LIMIT}, and all with --json.", show_default=False),
]
Wait = Annotated[
    float, typer.Option("--wait-seconds", "--wait", min=0, help="Seconds to wait until a relay has done it.")
]


@app.command("list")
@setting_options(ChannelSettings)
def list_command(
    given: Given,
    group: Group = None,
    reason: Reason = None,
    limit: Limit = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """List the transactions in the discard topic and their reasons, one at a time."""
    topic = _Topic(ChannelSettings(**given))
    chosen = _Choice(None, every=True, group=group, reason=reason).of(topic.read())
    if as_json:
        rows = (_fields(manifest) for manifest in islice(chosen, limit))
        rest = lambda: {"not_listed": _count(chosen), "not_read": sorted(topic.unread)}  # noqa: E731 - a last word
        print_json_rows({"channel": topic.name}, "transactions", rows, rest)
    else:
        _show_list(chosen, limit or LIMIT, topic.name)
    if topic.unread:
        raise SystemExit(Exit.UNPROVABLE)


@app.command()
@setting_options(ChannelSettings)
def show(
    transaction: Annotated[str, typer.Argument(help="Transaction id.")],
    given: Given,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Show one: all that is known of it but the content of its messages."""
    topic = _Topic(ChannelSettings(**given))
    found = topic.read_one(transaction)
    if as_json:
        messages = [_message_fields(*half) for half in found.halves()]
        print_json({"channel": topic.name, **_fields(found.manifest), "halves": messages})
    else:
        _show_one(found)


def _add_decision(name: str, kind: OpKind, meaning: str) -> None:
    @app.command(name, help=f"{meaning}; ends with 2 if something stays.")
    @setting_options(ChannelSettings)
    def command(
        given: Given,
        transactions: Ids = None,
        every: All = False,  # noqa: FBT002 - a flag
        group: Group = None,
        reason: Reason = None,
        yes: Yes = False,  # noqa: FBT002 - a flag
        comment: Comment = "",
        wait: Wait = 10.0,
        as_json: Json = False,  # noqa: FBT002 - a flag
    ) -> None:
        choice, manner = _Choice(transactions, every, group, reason), _Manner(yes, comment, wait, as_json)
        may_ask(yes=yes, as_json=as_json)
        choice.check()
        _decide(kind, _Topic(ChannelSettings(**given)), choice, manner)


_add_decision("deliver", OpKind.DELIVER, "Let pre-flight look again, and deliver what it does not refuse")
_add_decision("drop", OpKind.ROLLBACK, "Remove for good what shall never be delivered")

_CONSEQUENCES = {
    OpKind.DELIVER: "be delivered unless pre-flight refuses them again: out of their order, with header outbox-late",
    OpKind.ROLLBACK: "be removed for good although they committed in the database: no consumer will receive them",
}


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which transactions."""

    ids: Sequence[str] | None = None
    every: bool = False
    group: str | None = None
    reason: DiscardReason | None = None

    def check(self) -> None:
        """Check that it names transactions, or all.

        Raises:
            UsageError: It names none, or both.
        """
        if bool(self.ids) == self.every:
            raise UsageError("name transactions, or give --all, which --group and --reason narrow")

    def of(self, manifests: Iterable[Manifest]) -> Iterator[Manifest]:
        """Return the manifests that are chosen, one at a time."""
        ids = frozenset(self.ids or ())
        return (
            manifest
            for manifest in manifests
            if (self.every or manifest.transaction_id in ids)
            and self.group in {None, manifest.group}
            and self.reason in {None, manifest.reason}
        )

    def all_of(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Return the manifests that are chosen.

        Raises:
            UsageError: A transaction that is named is not there.
        """
        ids = frozenset(self.ids or ())
        named = [manifest for manifest in manifests if self.every or manifest.transaction_id in ids]
        if missing := sorted(ids - {manifest.transaction_id for manifest in named}):
            raise _not_there(missing)
        return list(self.of(named))


def _not_there(ids: Iterable[str]) -> UsageError:
    return UsageError(f"transaction {', '.join(ids)} is not in the discard topic")


@dataclass(frozen=True, slots=True)
class _Manner:
    """How."""

    yes: bool
    comment: str
    wait: float
    as_json: bool


class _Topic:
    """The discard topic of a channel."""

    def __init__(self, settings: ChannelSettings) -> None:
        self.name = settings.channel
        self.kafka = connection(settings)
        self.channel: ChannelDescription = verify_channel(admin_client(self.kafka), settings.channel_names())
        self.unread: set[str] = set()
        """Places of manifests that this version cannot read."""

    def read(self) -> Iterator[Manifest]:
        """Read the manifests that are there now, one at a time; name those that cannot be read on standard error."""
        return read_manifests(self.kafka, self.channel, self._cannot_read)

    def _cannot_read(self, message: Message, error: ProtocolError) -> None:
        place = f"{message.topic()}/{message.partition()} offset {message.offset()}"
        if place not in self.unread:
            self.unread.add(place)
            warn(f"{place} is passed over: {error}")

    def read_one(self, transaction_id: str) -> Discarded:
        """Read one transaction.

        Raises:
            UsageError: It is not there.
        """
        found = read_discarded(self.kafka, self.channel, transaction_id)
        if found is None:
            raise _not_there([transaction_id])
        return found


def _decide(kind: OpKind, topic: _Topic, choice: _Choice, manner: _Manner) -> None:
    """Decide on what may be decided.

    Raises:
        SystemExit: Something is left as it is.
    """
    chosen = choice.all_of(topic.read())
    able = [manifest for manifest in chosen if not why_not(manifest, kind)]
    if not manner.as_json:
        messages = sum(len(manifest.positions) for manifest in able)
        _show(chosen, f"{len(able)} transactions, {messages} messages, will {_CONSEQUENCES[kind]}", kind)
    left: list[Manifest] = []
    if able and (manner.yes or typer.confirm("Go on?")):
        decide(topic.kafka, topic.channel, able, kind, signed(manner.comment))
        left = _await(topic, {manifest.transaction_id for manifest in able}, manner.wait)
        if not manner.as_json:
            _tell(len(able), left)
    if manner.as_json:
        print_json(_decided(topic, chosen, kind, left))
    if left or len(able) < len(chosen) or (choice.every and topic.unread):
        raise SystemExit(Exit.FINDINGS)


def _await(topic: _Topic, ids: Collection[str], seconds: float) -> list[Manifest]:
    """Look until a relay has done it; what still is there."""
    deadline = time.monotonic() + seconds
    while (left := [found for found in topic.read() if found.transaction_id in ids]) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return left


def _tell(count: int, left: Sequence[Manifest]) -> None:
    typer.echo(f"{count - len(left)} of {count} have left the discard topic")
    if left:
        _show(left, "still there: refused again, or no relay has come to them yet")


def _decided(topic: _Topic, chosen: Sequence[Manifest], kind: OpKind, left: Sequence[Manifest]) -> dict[str, Any]:
    """Return what became of each, for programs."""
    there = {manifest.transaction_id for manifest in left}

    def outcome(manifest: Manifest) -> str:
        if why_not(manifest, kind):
            return "refused"
        return "still there" if manifest.transaction_id in there else "left"

    transactions = [
        {**_fields(manifest), "outcome": outcome(manifest), "why": why_not(manifest, kind) or None}
        for manifest in chosen
    ]
    return {"channel": topic.channel.channel.name, "decision": kind.name, "transactions": transactions}


# --- tables -----------------------------------------------------------------------------------------------------------


def _show_list(chosen: Iterator[Manifest], limit: int, channel: str) -> None:
    listed = list(islice(chosen, limit))
    _show(listed, f"discarded transactions of channel {channel}")
    if not listed:
        PlainConsole().print(f"The discard topic of channel {channel} has no such transaction.")
    elif more := _count(chosen):
        PlainConsole().print(f"{more} more are not listed: --limit")


def _show(manifests: Sequence[Manifest], title: str, kind: OpKind | None = None) -> None:
    """Print two or three lines for each, none of which needs more than 80 columns for ordinary names."""
    if not manifests:
        return
    console = PlainConsole()
    console.print(title)
    for manifest in manifests:
        refusal = why_not(manifest, kind) if kind else ""
        count = len(manifest.positions)
        print_entry(
            console,
            f"{manifest.transaction_id}  {manifest.group}  {manifest.reason}",
            f"{count} message{'' if count == 1 else 's'}, first appended {utc(manifest.first_append_time)}",
            f"NOT THIS ONE: {refusal}" if refusal else manifest.detail,
        )


def _count(left: Iterable[Manifest]) -> int:
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


def _fields(manifest: Manifest) -> dict[str, Any]:
    """Return a transaction for programs."""
    return {
        "transaction": manifest.transaction_id,
        "group": manifest.group,
        "truth": str(manifest.truth),
        "reason": str(manifest.reason),
        "detail": manifest.detail,
        "decision": manifest.decision.name if manifest.decision else None,
        "half_partition": manifest.partition,
        "positions": str(manifest.positions),
        "messages": len(manifest.positions),
        "appended_ms": manifest.first_append_time,
        "unknown_answers": manifest.checks,
        "last_answer": manifest.last_answer,
    }


def _message_fields(position: int, offset: int, message: DiscardedMessage | None) -> dict[str, Any]:
    return {
        "position": position,
        "half_offset": offset,
        "target": message.target if message else None,
        "has_key": message.has_key if message else None,
        "bytes": message.size if message else None,
    }
