"""`outbox discarded`: what lies in the discard topic, and an operator's decisions on it."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outbox.channel import ChannelDescription, verify_channel
from outbox.cluster import admin_client
from outbox.commands.options import CHANNEL_DEFAULT, BootstrapServers, ChannelName, connection
from outbox.discarded import DiscardTopic, decide, read_discard_topic, why_not
from outbox.errors import UsageError
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.names import Channel
from outbox.protocol.op import OpKind
from outbox.service.exits import Exit, guarded

LOOK_SECONDS = 0.5

app = typer.Typer(help="Transactions in the discard topic: list, show, deliver, drop.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Transaction ids.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All that --group and --reason leave.")]
Group = Annotated[str | None, typer.Option(help="Only of this producer group.")]
Reason = Annotated[DiscardReason | None, typer.Option(help="Only with this reason.", case_sensitive=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Comment = Annotated[str, typer.Option(help="Why; it goes into the op topic with your name.")]
Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait until a relay has done it.")]


@app.command("list")
def list_command(
    bootstrap_servers: BootstrapServers = "",
    channel: ChannelName = CHANNEL_DEFAULT,
    group: Group = None,
    reason: Reason = None,
) -> None:
    """List what lies there, and why."""

    def run() -> None:
        found = _Topic(bootstrap_servers, channel).found
        chosen = _Choice(None, every=True, group=group, reason=reason).of(found.manifests)
        _show(chosen, f"discarded transactions of channel {channel}")

    guarded(run)


@app.command()
def show(
    transaction: Annotated[str, typer.Argument(help="Transaction id.")],
    bootstrap_servers: BootstrapServers = "",
    channel: ChannelName = CHANNEL_DEFAULT,
) -> None:
    """Show one: all that is known of it but the content of its messages."""

    def run() -> None:
        found = _Topic(bootstrap_servers, channel).found
        (manifest,) = _Choice([transaction]).of(found.manifests)
        _show_one(manifest, found)

    guarded(run)


def _add_decision(name: str, kind: OpKind, meaning: str) -> None:
    @app.command(name, help=f"{meaning}; ends with 2 if something stays.")
    def command(
        transactions: Ids = None,
        bootstrap_servers: BootstrapServers = "",
        channel: ChannelName = CHANNEL_DEFAULT,
        every: All = False,  # noqa: FBT002 - a flag
        group: Group = None,
        reason: Reason = None,
        yes: Yes = False,  # noqa: FBT002 - a flag
        comment: Comment = "",
        wait: Wait = 10.0,
    ) -> None:
        choice, manner = _Choice(transactions, every, group, reason), _Manner(yes, comment, wait)
        guarded(lambda: _decide(kind, _Topic(bootstrap_servers, channel), choice, manner))


_add_decision("deliver", OpKind.DELIVER, "Let pre-flight look again, and deliver what it does not refuse")
_add_decision("drop", OpKind.ROLLBACK, "Remove for good what shall never be delivered")

_CONSEQUENCES = {
    OpKind.DELIVER: "be delivered unless pre-flight refuses them again: out of their order, with header outbox-late",
    OpKind.ROLLBACK: "be removed for good, though they have committed in the database: nobody will ever receive them",
}


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which transactions."""

    ids: Sequence[str] | None = None
    every: bool = False
    group: str | None = None
    reason: DiscardReason | None = None

    def of(self, manifests: Mapping[str, Manifest]) -> list[Manifest]:
        """Those of what lies there.

        Raises:
            UsageError: None is named, or one that does not lie there.
        """
        if bool(self.ids) == self.every:
            raise UsageError("name transactions, or give --all, which --group and --reason narrow")
        if unknown := [id_ for id_ in self.ids or () if id_ not in manifests]:
            raise UsageError(f"transaction {', '.join(unknown)} does not lie in the discard topic")
        return [
            manifest
            for id_, manifest in manifests.items()
            if (self.every or id_ in (self.ids or ()))
            and self.group in {None, manifest.group}
            and self.reason in {None, manifest.reason}
        ]


@dataclass(frozen=True, slots=True)
class _Manner:
    """How."""

    yes: bool
    comment: str
    wait: float

    def reason(self) -> str:
        """What the op record says of who decided, and why."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # as in a container, whose user has no name
            user = f"user {os.getuid()}"
        return f"{user}: {self.comment or 'no comment'}"


class _Topic:
    """The discard topic of a channel."""

    def __init__(self, bootstrap_servers: str, channel: str) -> None:
        self.kafka = connection(bootstrap_servers)
        self.channel: ChannelDescription = verify_channel(admin_client(self.kafka), Channel(channel))
        self.found = self.read()

    def read(self) -> DiscardTopic:
        """What lies there now."""
        return read_discard_topic(self.kafka, self.channel)


def _decide(kind: OpKind, topic: _Topic, choice: _Choice, manner: _Manner) -> None:
    chosen = choice.of(topic.found.manifests)
    able = [manifest for manifest in chosen if not why_not(manifest, kind)]
    messages = sum(len(manifest.positions) for manifest in able)
    _show(chosen, f"{len(able)} transactions, {messages} messages, will {_CONSEQUENCES[kind]}", kind)
    if able and (manner.yes or typer.confirm("Go on?")):
        decide(topic.kafka, topic.channel, able, kind, manner.reason())
        _await(topic, [manifest.transaction_id for manifest in able], manner.wait)
    if len(able) < len(chosen):
        raise SystemExit(Exit.FINDINGS)


def _await(topic: _Topic, ids: Collection[str], seconds: float) -> None:
    """Look until a relay has done it.

    Raises:
        SystemExit: Some still lie there.
    """
    deadline = time.monotonic() + seconds
    while (
        left := [found for id_, found in topic.read().manifests.items() if id_ in ids]
    ) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    typer.echo(f"{len(ids) - len(left)} of {len(ids)} have left the discard topic")
    if left:
        _show(left, "still there: refused again, or no relay has come to them yet")
        raise SystemExit(Exit.FINDINGS)


# --- tables -----------------------------------------------------------------------------------------------------------


def _show(manifests: Sequence[Manifest], title: str, kind: OpKind | None = None) -> None:
    table = Table("transaction", "group", "reason", "messages", "first appended", "detail", title=title)
    for manifest in manifests:
        refusal = why_not(manifest, kind) if kind else ""
        table.add_row(
            manifest.transaction_id,
            manifest.group,
            manifest.reason,
            str(len(manifest.positions)),
            _time(manifest.first_append_time),
            f"NOT THIS ONE: {refusal}" if refusal else manifest.detail,
        )
    Console().print(table)


def _show_one(manifest: Manifest, found: DiscardTopic) -> None:
    table = Table(show_header=False, title=f"transaction {manifest.transaction_id}")
    decision = manifest.decision.name if manifest.decision else "none"
    for name, value in (
        ("group", manifest.group),
        ("reason", manifest.reason),
        ("detail", manifest.detail),
        ("decision", decision),
        ("half partition", manifest.partition),
        ("positions that count", manifest.positions),
        ("first appended", _time(manifest.first_append_time)),
        ("UNKNOWN answers", manifest.checks),
        ("last answer", manifest.last_answer),
    ):
        table.add_row(name, str(value))
    Console().print(table)
    messages = Table("position", "half offset", "target", "key", "bytes")
    for position, offset, message in found.messages_of(manifest):
        what = (message.target, "yes" if message.has_key else "no", str(message.size)) if message else ("?", "?", "?")
        messages.add_row(str(position), str(offset), *what)
    Console().print(messages)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")
