"""`outbox resolve`: an operator decides undecided transactions, in their database first."""

import time
from typing import Annotated, Any

import typer

from outbox._cli.setting_options import option, subcommand
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, may_ask, print_entries, show, show_records_read
from outbox.errors import UsageError
from outbox.operator import words
from outbox.operator.deciding.resolution import Resolution
from outbox.operator.reading.database_view import NO_INCARNATION
from outbox.operator.settings import DecisionSettings
from outbox.operator.views import OperatorContext, parse_duration, parse_id
from outbox.protocol.op import OpKind


@subcommand(DecisionSettings)
def app(
    given: dict[str, Any],
    transaction: Annotated[str | None, typer.Argument(help="Transaction id.", show_default=False)] = None,
    commit: Annotated[bool, option("Deliver its messages.", "--commit")] = False,
    rollback: Annotated[bool, option("Never deliver its messages.", "--rollback")] = False,
    reason: Annotated[str, option("Reason; stored in the op topic with your name and the time.")] = "",
    incarnation: Annotated[
        str | None,
        option(f"Incarnation of its database that is gone for good, as its halves name it, or {NO_INCARNATION!r}."),
    ] = None,
    every: Annotated[bool, option("All of --service, with --rollback only.", "--all")] = False,
    service: Annotated[str | None, option("Service, with --all.", show_default=False)] = None,
    older_than: Annotated[str, option("With --all: only what is older, such as 90s, 15m, 6h or 2d.")] = "0s",
    min_age_ms: Annotated[int | None, option("Minimum age. Default: the relay's setting.", min=0)] = None,
    dry_run: Annotated[bool, option("Show what would be decided.", "--dry-run")] = False,
    yes: Annotated[bool, option("Do not ask.", "--yes")] = False,
    as_json: Json = False,
) -> Exit:
    """Decide undecided transactions by hand, in their database first.

    It ends with 2 and the reason if it refuses; the transaction stays undecided then.
    """
    if commit == rollback:
        raise UsageError("give either --commit or --rollback")
    if not reason.strip():
        raise UsageError("give --reason: it goes into the op topic with your name")
    may_ask(yes=yes or dry_run, as_json=as_json)
    id_ = _chosen(transaction, service, every=every)
    if every and not rollback:
        raise UsageError("--all takes --rollback only: decide a COMMIT without a row one by one")
    settings = DecisionSettings(**given)
    context = OperatorContext(settings, settings.operator)
    least = settings.transaction_timeout_ms if min_age_ms is None else min_age_ms
    until = time.time_ns() // 1_000_000 - (least if id_ else max(least, parse_duration(older_than)))
    kind = OpKind.COMMIT if commit else OpKind.ROLLBACK
    with show_records_read():
        case = Resolution(context, kind, incarnation, until, id_, service)
        document = case.look(reason if yes and not dry_run else "")
    if not yes and not dry_run and (document.get("possible") or document.get("outcome") == "possible"):
        print_entries(words.decisions(document))
        of_all = f"{document.get('possible')} transactions will be rolled back for good"
        if not typer.confirm(f"{case.case.consequence(kind) if case.case else of_all}. Go on?"):
            return Exit.OK
        document = case.look(reason)  # again: the answer may have taken long
    show(document, words.decisions(document), as_json=as_json)
    is_left = document["outcome"] == "refused" if id_ else document["refused"] or document["not_read"]
    return Exit.FINDINGS if is_left else Exit.OK


def _chosen(transaction: str | None, service: str | None, *, every: bool) -> str | None:
    if (transaction is None) != every or every != bool(service):
        raise UsageError("name one transaction, or give --all and --service")
    id_, position = (None, None) if transaction is None else parse_id(transaction)
    if position is not None:
        raise UsageError(f"a transaction is decided as a whole: name it as {id_}")
    return id_
