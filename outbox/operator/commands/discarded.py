"""`outbox discarded`: transactions that were not delivered, halves or rows, and an operator's decisions on them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._service.exit_codes import Exit
from outbox._service.output import (
    Json,
    PlainConsole,
    may_ask,
    print_entry,
    print_json,
    print_json_rows,
    utc,
)
from outbox._settings.declared import NO_TABLES
from outbox.errors import UsageError
from outbox.operator.deciding.discarded_places import Choice, Decision, Discards
from outbox.operator.settings import DecisionSettings, Given, TableCommandSettings
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind

LIMIT = 100
"""Transactions that are listed for people."""

app = typer.Typer(help="Transactions that were not delivered: list, deliver, drop.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Transaction ids.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All transactions, limited by --service and --reason.")]
Service = Annotated[str | None, typer.Option(help="Only transactions of this service.")]
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
    service: Service = None,
    reason: Reason = None,
    limit: Limit = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """List the discarded transactions and their reasons, one at a time."""
    places = Discards(TableCommandSettings(**given))
    chosen = Choice(every=True, service=service, reason=reason).of(places.read())
    if as_json:
        rest = lambda: {"not_listed": _count(chosen), "not_read": places.unread()}  # noqa: E731 - a last word
        print_json_rows({"channel": places.channel}, "transactions", islice(chosen, limit), rest)
    else:
        _show_list(chosen, limit or LIMIT, places)
        if not places.tables:
            PlainConsole().print(f"not looked at: rows of table mode ({NO_TABLES})")
    if places.unread():
        raise SystemExit(Exit.UNPROVABLE)


def _add_decision(name: str, kind: OpKind, meaning: str) -> None:
    @app.command(name, help=f"{meaning}; ends with 2 if something stays.")
    @setting_options(DecisionSettings)
    def command(
        given: Given,
        transactions: Ids = None,
        every: All = False,  # noqa: FBT002 - a flag
        service: Service = None,
        reason: Reason = None,
        dry_run: DryRun = False,  # noqa: FBT002 - a flag
        yes: Yes = False,  # noqa: FBT002 - a flag
        comment: Comment = "",
        wait: Wait = 10.0,
        as_json: Json = False,  # noqa: FBT002 - a flag
    ) -> None:
        choice = Choice([_transaction(one) for one in transactions or ()], every, service, reason)
        settings = DecisionSettings(**given)
        may_ask(yes=yes or dry_run, as_json=as_json)
        if bool(choice.ids) == every:
            raise UsageError("Either name transactions or give --all. --service and --reason limit --all.")
        places = Discards(settings, settings.operator)
        decision = places.decision(choice, kind)
        if not as_json:
            _show(decision.chosen, _intention(decision), kind)
        if decision.able and not dry_run and (yes or typer.confirm("Go on?")):
            decision.make(comment)
            if not as_json:
                _show_new_ids(decision)
            decision.wait(wait)
        if as_json:
            print_json({"channel": places.channel, "decision": kind.name, "transactions": decision.documents()})
        elif decision.is_made:
            _report(decision)
        if decision.left or len(decision.able) < len(decision.chosen) or (every and places.unread()):
            raise SystemExit(Exit.FINDINGS)


_add_decision("deliver", OpKind.DELIVER, "Let pre-flight look again, and deliver what it does not refuse")
_add_decision("drop", OpKind.ROLLBACK, "Remove for good what shall never be delivered")

_CONSEQUENCES = {
    OpKind.DELIVER: "be delivered out of their order, unless pre-flight refuses them again",
    OpKind.ROLLBACK: "be removed for good although they committed in the database: no consumer will receive them",
}
_LATE = "; halves get the header outbox-late"
_ROWS_BACK = "; {} of them are rows, which go back into their message table with new ids, behind all that wait there"


def _transaction(id_: str) -> str:
    """Return the transaction of a message id: a transaction is decided as a whole."""
    return id_.strip().partition("/")[0]


def _intention(decision: Decision) -> str:
    able = decision.able
    messages = sum(entry.messages for entry in able)
    rows = sum(entry.source is not None for entry in able)
    late, back = (_LATE if rows < len(able) else "", _ROWS_BACK.format(rows) if rows else "")
    more = f"{late}{back}" if decision.kind is OpKind.DELIVER else ""
    return f"{len(able)} transactions, {messages} messages, will {_CONSEQUENCES[decision.kind]}{more}"


def _show_new_ids(decision: Decision) -> None:
    """Print the new id of each message that is back in a message table; nothing else keeps the two together."""
    for one in decision.able:
        for former, new in decision.new_ids(one)[1].items():
            typer.echo(f"{former} is now {new}")


def _report(decision: Decision) -> None:
    done = "were delivered" if decision.kind is OpKind.DELIVER else "were dropped"
    count = len(decision.able)
    left = [replace(one, transaction=decision.new_ids(one)[0] or one.transaction) for one in decision.left]
    typer.echo(f"{count - len(left)} of {count} have left the discard topic and the tables: they {done}")
    if left:
        _show(left, "still there: refused again, or no relay has come to them yet", decision.kind)


def _show_list(chosen: Iterator[DiscardedTransaction], limit: int, places: Discards) -> None:
    listed = list(islice(chosen, limit))
    _show(listed, f"discarded transactions of channel {places.channel}")
    if not listed:
        read = "what could be read of " if places.unread() else ""
        PlainConsole().print(f"No discarded transaction was found in {read}channel {places.channel}.")
    elif more := _count(chosen):
        PlainConsole().print(f"{more} more are not listed: --limit")


def _show(entries: Sequence[DiscardedTransaction], title: str, kind: OpKind | None = None) -> None:
    """Print two or three lines for each, none of which needs more than 80 columns for ordinary names.

    More than are listed for people, of which a decision is made, are sums by service and reason.
    """
    if not entries:
        return
    console = PlainConsole()
    console.print(title)
    if kind and len(entries) > LIMIT:
        sums = Counter((entry.service, entry.reason, entry.why_not(kind)) for entry in entries)
        for (service, reason, refusal), count in sums.most_common():
            print_entry(console, f"{count} of {service}  {reason}", f"NOT THESE: {refusal}" if refusal else "")
        return
    for entry in entries:
        refusal = entry.why_not(kind) if kind else ""
        print_entry(
            console,
            f"{entry.transaction}  {entry.service}  {entry.reason}",
            f"{entry.messages} message{'' if entry.messages == 1 else 's'}, {_where(entry)}",
            f"NOT THIS ONE: {refusal}" if refusal else entry.detail,
        )


def _where(entry: DiscardedTransaction) -> str:
    if entry.discarded_ms is None:
        return f"first appended {utc(entry.appended_ms)}"
    return f"of table source {entry.source}, discarded {utc(entry.discarded_ms)}"


def _count(left: Iterable[DiscardedTransaction]) -> int:
    return sum(1 for _ in left)
