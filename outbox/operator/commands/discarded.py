"""`outbox discarded`: transactions that were not delivered, halves or rows, and an operator's decisions on them."""

import enum
from itertools import chain, islice
from typing import Annotated

import typer

from outbox._cli.setting_options import option, subcommand
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, may_ask, print_entries, print_json, print_json_rows
from outbox._settings.declared import NO_TABLES
from outbox.errors import UsageError
from outbox.operator import words
from outbox.operator.deciding.discarded_places import Choice, Discards
from outbox.operator.settings import DecisionSettings, Given
from outbox.operator.state.discarded import sums_of
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind


class Action(enum.StrEnum):
    """What is done with them."""

    LIST = "list"
    DELIVER = "deliver"
    DROP = "drop"


@subcommand(DecisionSettings)
def app(
    given: Given,
    action: Annotated[Action, typer.Argument(help="deliver: pre-flight looks again; drop: for good.")] = Action.LIST,
    ids: Annotated[list[str] | None, typer.Argument(help="Transaction ids.", show_default=False)] = None,
    every: Annotated[bool, option("Decide on all of --service and --reason.", "--all")] = False,
    service: Annotated[str | None, option("Only transactions of this service.")] = None,
    reason: Annotated[DiscardReason | None, option("Only transactions with this reason.", case_sensitive=False)] = None,
    dry_run: Annotated[bool, option("Show what would be decided.", "--dry-run")] = False,
    yes: Annotated[bool, option("Do not ask.", "--yes")] = False,
    comment: Annotated[str, option("Comment; the op topic keeps it with your name, none for rows.")] = "",
    wait: Annotated[
        float | None, option("Time until a relay has done it. Default: 10.", "--wait-seconds", "--wait", min=0)
    ] = None,
    as_json: Json = False,
) -> Exit:
    """List the discarded transactions and their reasons, deliver them, or drop them.

    It ends with 2 if something stays that was to go, with 3 if something could not be listed.
    """
    settings = DecisionSettings(**given)
    # A transaction is decided as a whole: of a message id its part counts.
    choice = Choice([one.strip().partition("/")[0] for one in ids or ()], every, service, reason)
    if action is Action.LIST:
        of_decisions = {"--all": every, "--dry-run": dry_run, "--yes": yes, "--comment": comment}
        of_decisions |= {"--wait-seconds": wait is not None, "--operator": "operator" in given}
        if refused := ", ".join(name for name, value in of_decisions.items() if value):
            raise UsageError(f"`outbox discarded list` decides nothing. Omit {refused}, or write deliver or drop.")
        return _list(Discards(settings), choice._replace(every=not ids), as_json=as_json)
    may_ask(yes=yes or dry_run, as_json=as_json)
    if bool(choice.ids) == every:
        raise UsageError("Either name transactions or give --all. --service and --reason limit --all.")
    kind = OpKind.DELIVER if action is Action.DELIVER else OpKind.ROLLBACK
    places = Discards(settings, settings.operator)
    decision = places.decision(choice, kind)
    if not as_json:
        print_entries(words.dead_letters(decision.chosen, decision.intention(), kind))
    if decision.able and not dry_run and (yes or typer.confirm("Go on?")):
        decision.make(comment)
        if not as_json:
            print_entries(decision.new_names())
        decision.wait(10.0 if wait is None else wait)
    if as_json:
        print_json({"channel": places.channel, "decision": kind.name, "transactions": list(decision.documents())})
    elif decision.is_made:
        print_entries(decision.report())
    is_rest = decision.left or len(decision.able) < len(decision.chosen) or (every and places.unread())
    return Exit.FINDINGS if is_rest else Exit.OK


def _list(places: Discards, choice: Choice, *, as_json: bool) -> Exit:
    chosen, no_rows = choice.of(places.read()), [] if places.tables else [f"rows of table mode ({NO_TABLES})"]
    if as_json:
        rest = lambda: {"not_read": [*places.unread(), *no_rows]}  # noqa: E731 - a last word
        print_json_rows({"channel": places.channel}, "transactions", chosen, rest)
    else:
        print_entries(Entry(f"not looked at: {one}") for one in no_rows)
        listed = list(islice(chosen, words.MOST_LISTED))
        print_entries(words.dead_letters(listed, f"discarded transactions of channel {places.channel}"))
        if no_rows and not listed and choice == Choice(choice.ids):
            places.decision(choice, OpKind.DELIVER)  # it refuses what is nowhere
        sums = sums_of(chain(listed, chosen))
        print_entries(words.dead_letter_sums(sums))
        if not listed:
            read = "what could be read of " if places.unread() else ""
            print_entries([Entry(f"No discarded transaction was found in {read}channel {places.channel}.")])
        elif more := sum(count for _, count in sums) - len(listed):
            print_entries([Entry(f"{more} more are not listed: --json")])
    return Exit.UNPROVABLE if places.unread() else Exit.OK
