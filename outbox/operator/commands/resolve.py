"""`outbox resolve`: an operator decides undecided transactions, in their database first."""

from typing import Annotated, Any

import typer

from outbox._cli.setting_options import setting_options
from outbox._service.exit_codes import Exit, warn
from outbox._service.output import Json, PlainConsole, field_table, may_ask, print_entry, print_json
from outbox.errors import UsageError
from outbox.operator.context import (
    ONE_COMMAND,
    OperatorContext,
    parse_duration,
    parse_id,
)
from outbox.operator.deciding.resolution import Resolution
from outbox.operator.reading.database_view import NO_INCARNATION
from outbox.operator.reading.search import TableSearch
from outbox.operator.settings import ResolveSettings
from outbox.operator.state.story import Findings, advice, conclude
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --all: show what would be decided.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Decide COMMIT or ROLLBACK. Exits with 2 and the reason if it refuses; the transaction stays undecided then."""
    if commit == rollback:
        raise UsageError("give either --commit or --rollback")
    if not reason.strip():
        raise UsageError("give --reason: it goes into the op topic with your name")
    may_ask(yes=yes or dry_run, as_json=as_json)
    if (transaction is None) != every or every != bool(service):
        raise UsageError("name one transaction, or give --all and --service")
    if every and not rollback:
        raise UsageError("--all takes --rollback only: decide a COMMIT without a row one by one")
    settings, id_ = ResolveSettings(**given), None if transaction is None else _id(transaction)
    context = OperatorContext(settings, settings.operator)
    if id_ is not None:
        _refuse_rows(settings, id_, as_json=as_json)
    least = settings.transaction_timeout_ms if min_age_ms is None else min_age_ms
    age = least if id_ else max(least, parse_duration(older_than))
    case = Resolution(context, OpKind.COMMIT if commit else OpKind.ROLLBACK, incarnation, age, id_, service)
    case.find()
    if case.possible() and not dry_run:
        if not yes and not _may(case):
            return
        if case.possible():
            case.decide(reason)
    _tell(case.document(), as_json=as_json)
    if not case.is_whole():
        raise SystemExit(Exit.FINDINGS)


def _may(case: Resolution) -> bool:
    """Ask the operator, and look again at one transaction: the answer may have taken long."""
    _show(case.document())
    if not typer.confirm(f"{case.consequence()}. Go on?"):
        return False
    if case.id is not None:
        case.find()
    return True


def _id(transaction: str) -> str:
    id_, position = parse_id(transaction)
    if position is not None:
        raise UsageError(f"a transaction is decided as a whole: name it as {id_}")
    return id_


def _refuse_rows(settings: ResolveSettings, transaction_id: str, *, as_json: bool) -> None:
    """Refuse to decide a transaction of table mode, with its state; name the tables that are not read.

    A row that is not read is never decided: it has no half, and only what has one is.
    """
    found = Findings(transaction_id)
    TableSearch(None, settings.channel_names(), found).search(settings.tables)
    if not found.is_of_rows:
        for gap in found.unread:
            warn(f"not searched: {gap}")
        return
    state, sentence = conclude(found)
    document = {
        "transaction": transaction_id,
        "decision": None,
        "outcome": "refused",
        "standing": state,
        "why": advice(state),
        "found": sentence,
        "table_sources": ", ".join(found.databases),
    }
    _tell(document, as_json=as_json)
    raise SystemExit(Exit.FINDINGS)


def _tell(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    console = PlainConsole()
    if "transaction" in document:
        console.print(field_table(f"transaction {document.pop('transaction')}", document))
        return
    counts = f"{document['found']} undecided, {document['possible']} can be rolled back, {document['decided']} were"
    print_entry(console, f"channel {document['channel']}, service {document['service']}: {counts}")
    for refused in document["refused"]:
        print_entry(console, f"{refused['transactions']} refused: {refused['standing']}", refused["why"])
    for left in document["not_read"]:
        print_entry(console, f"not read: {left.place} ({left.why}); run it again")
