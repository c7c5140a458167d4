"""`outbox resolve`: an operator decides undecided transactions, in their database first."""

from typing import Annotated, Any

import typer

from outbox._cli.setting_options import setting_options
from outbox._service.exit_codes import Exit, fail
from outbox._service.output import Json, may_ask, print_entries, show, show_records_read
from outbox.errors import UsageError
from outbox.operator import words
from outbox.operator.context import ONE_COMMAND, OperatorContext, parse_duration, parse_id
from outbox.operator.deciding.resolution import NotDecided, Resolution
from outbox.operator.reading.database_view import NO_INCARNATION
from outbox.operator.settings import ResolveSettings
from outbox.protocol.op import OpKind

app = typer.Typer(help="Decide undecided transactions by hand, in their database first.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(ResolveSettings)
def resolve(
    given: dict[str, Any],
    transaction: Annotated[str | None, typer.Argument(help="Transaction id.", show_default=False)] = None,
    commit: Annotated[bool, typer.Option("--commit", help="Deliver its messages.")] = False,  # noqa: FBT002 - a flag
    rollback: Annotated[bool, typer.Option("--rollback", help="Never deliver its messages.")] = False,  # noqa: FBT002 - a flag
    reason: Annotated[str, typer.Option(help="Reason; stored in the op topic with your name and the time.")] = "",
    incarnation: Annotated[
        str | None,
        typer.Option(
            help=f"Incarnation of its database that is gone for good, as its halves name it, or {NO_INCARNATION!r}."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All of --service, with --rollback only.")] = False,  # noqa: FBT002 - a flag
    service: Annotated[str | None, typer.Option(help="Service, with --all.", show_default=False)] = None,
    older_than: Annotated[str, typer.Option(help="With --all: only what is older, such as 90s, 15m, 6h or 2d.")] = "0s",
    min_age_ms: Annotated[
        int | None, typer.Option(min=0, help="Minimum age of a transaction. Default: the relay's setting.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be decided.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Decide COMMIT or ROLLBACK. Exits with 2 and the reason if it refuses; the transaction stays undecided then."""
    if commit == rollback:
        raise UsageError("give either --commit or --rollback")
    if not reason.strip():
        raise UsageError("give --reason: it goes into the op topic with your name")
    may_ask(yes=yes or dry_run, as_json=as_json)
    id_ = _chosen(transaction, service, every=every)
    if every and not rollback:
        raise UsageError("--all takes --rollback only: decide a COMMIT without a row one by one")
    settings = ResolveSettings(**given)
    context = OperatorContext(settings, settings.operator)
    least = settings.transaction_timeout_ms if min_age_ms is None else min_age_ms
    age = least if id_ else max(least, parse_duration(older_than))
    kind = OpKind.COMMIT if commit else OpKind.ROLLBACK
    try:
        with show_records_read() as passed:
            case = Resolution(context, kind, incarnation, age, id_, service, passed)
            case.find()
        if case.possible() and not dry_run:
            _decide(case, reason, yes=yes)
    except NotDecided as error:
        fail(str(error), error.code)
    document = case.document()
    show(document, words.decisions(document), as_json=as_json)
    if not case.is_whole():
        raise SystemExit(Exit.FINDINGS)


def _chosen(transaction: str | None, service: str | None, *, every: bool) -> str | None:
    """Return the id of the only transaction; None: all of the service."""
    if (transaction is None) != every or every != bool(service):
        raise UsageError("name one transaction, or give --all and --service")
    id_, position = (None, None) if transaction is None else parse_id(transaction)
    if position is not None:
        raise UsageError(f"a transaction is decided as a whole: name it as {id_}")
    return id_


def _decide(case: Resolution, reason: str, *, yes: bool) -> None:
    """Decide, after the operator was asked; one transaction is looked at again: the answer may have taken long."""
    if not yes:
        print_entries(words.decisions(case.document()))
        if not typer.confirm(f"{case.consequence()}. Go on?"):
            raise SystemExit(Exit.OK)
        if case.id is not None:
            case.find()
    if case.possible():
        case.decide(reason)
