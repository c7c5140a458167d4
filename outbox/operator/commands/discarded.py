"""`outbox discarded`: transactions that were not delivered, halves or rows, and an operator's decisions on them."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, may_ask, print_entries, print_json, print_json_rows
from outbox._settings.declared import NO_TABLES
from outbox.errors import UsageError
from outbox.operator import words
from outbox.operator.deciding.discarded_places import Choice, Discards
from outbox.operator.settings import DecisionSettings, Given, TableCommandSettings
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind

app = typer.Typer(help="Transactions that were not delivered: list, deliver, drop.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Transaction ids.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All transactions, limited by --service and --reason.")]
Service = Annotated[str | None, typer.Option(help="Only transactions of this service.")]
Reason = Annotated[DiscardReason | None, typer.Option(help="Only transactions with this reason.", case_sensitive=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be decided.")]
Comment = Annotated[str, typer.Option(help="Comment; stored in the op topic with your name. Not stored for rows.")]
Wait = Annotated[
    float, typer.Option("--wait-seconds", "--wait", min=0, help="Seconds to wait until a relay has done it.")
]


@app.command("list")
@setting_options(TableCommandSettings)
def list_command(
    given: Given,
    service: Service = None,
    reason: Reason = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """List the discarded transactions and their reasons, one at a time."""
    places = Discards(TableCommandSettings(**given))
    chosen = Choice(every=True, service=service, reason=reason).of(places.read())
    if as_json:
        rest = lambda: {"not_read": places.unread()}  # noqa: E731 - a last word
        print_json_rows({"channel": places.channel}, "transactions", chosen, rest)
    else:
        if not places.tables:
            print_entries([Entry(f"not looked at: rows of table mode ({NO_TABLES})")])
        _show_list(chosen, places)
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
            print_entries(words.dead_letters(decision.chosen, decision.intention(), kind))
        if decision.able and not dry_run and (yes or typer.confirm("Go on?")):
            decision.make(comment)
            if not as_json:
                print_entries(decision.new_names())
            decision.wait(wait)
        if as_json:
            print_json({"channel": places.channel, "decision": kind.name, "transactions": list(decision.documents())})
        elif decision.is_made:
            print_entries(decision.report())
        if decision.left or len(decision.able) < len(decision.chosen) or (every and places.unread()):
            raise SystemExit(Exit.FINDINGS)


_add_decision("deliver", OpKind.DELIVER, "Let pre-flight look again, and deliver what it does not refuse")
_add_decision("drop", OpKind.ROLLBACK, "Remove for good what shall never be delivered")


def _transaction(id_: str) -> str:
    """Return the transaction of a message id: a transaction is decided as a whole."""
    return id_.strip().partition("/")[0]


def _show_list(chosen: Iterator[DiscardedTransaction], places: Discards) -> None:
    listed = list(islice(chosen, words.MOST_LISTED))
    print_entries(words.dead_letters(listed, f"discarded transactions of channel {places.channel}"))
    if not listed:
        read = "what could be read of " if places.unread() else ""
        print_entries([Entry(f"No discarded transaction was found in {read}channel {places.channel}.")])
    elif more := sum(1 for _ in chosen):
        print_entries([Entry(f"{more} more are not listed: --json")])
