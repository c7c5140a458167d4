"""`outbox resolve`: an operator decides undecided transactions, in their database first."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from checker.operator.bulk import Bulk
from checker.operator.database_view import NO_INCARNATION
from checker.operator.options import (
    ONE_COMMAND,
    SITE_OPTIONS,
    OperatorContext,
    ResolveSettings,
    parse_duration,
    parse_id,
)
from checker.operator.resolution import RequestedDecision
from checker.operator.row_story import advice, conclude_rows
from checker.operator.table_search import TableSearch
from checker.operator.timeline import Findings
from outbox._cli.setting_options import setting_options
from outbox._service.exit_codes import Exit, warn
from outbox._service.output import Json, PlainConsole, may_ask, print_entry, print_json, utc
from outbox.errors import UsageError
from outbox.protocol.op import OpKind

app = typer.Typer(help="Decide undecided transactions by hand, in their database first.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(ResolveSettings, only=("transaction_timeout_ms", "operator", *SITE_OPTIONS))
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
    every: Annotated[bool, typer.Option("--all", help="All of --group, with --rollback only.")] = False,  # noqa: FBT002 - a flag
    group: Annotated[str | None, typer.Option(help="Producer group, with --all.", show_default=False)] = None,
    older_than: Annotated[str, typer.Option(help="With --all: only what is older, such as 90s, 15m, 6h or 2d.")] = "0s",
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
    settings = ResolveSettings(**given)
    desk = _Arguments(transaction, every, group, rollback).desk(settings)
    manner = _Manner(reason, yes, dry_run, as_json)
    if transaction is not None:
        _refuse_rows(settings, _id(transaction), manner)
    if transaction is None:
        age = max(settings.transaction_timeout_ms, parse_duration(older_than))
        _resolve_all(Bulk(desk, group or "", age, incarnation), manner)
    else:
        kind = OpKind.COMMIT if commit else OpKind.ROLLBACK
        _resolve_one(
            RequestedDecision(desk, _id(transaction), kind, incarnation, settings.transaction_timeout_ms), manner
        )


class _Manner(NamedTuple):
    """How."""

    reason: str
    yes: bool
    dry_run: bool
    as_json: bool


class _Arguments(NamedTuple):
    """Which transactions."""

    transaction: str | None
    every: bool
    group: str | None
    rollback: bool

    def desk(self, settings: ResolveSettings) -> OperatorContext:
        """Check them, then connect."""
        if (self.transaction is None) != self.every or self.every != bool(self.group):
            raise UsageError("name one transaction, or give --all and --group")
        if self.every and not self.rollback:
            raise UsageError("--all takes --rollback only: decide a COMMIT without a row one by one")
        if self.transaction is not None:
            _id(self.transaction)
        return OperatorContext(settings, settings.operator)


def _id(transaction: str) -> str:
    id_, position = parse_id(transaction)
    if position is not None:
        raise UsageError(f"a transaction is decided as a whole: name it as {id_}")
    return id_


def _refuse_rows(settings: ResolveSettings, transaction_id: str, manner: _Manner) -> None:
    """Refuse to decide a transaction of table mode, with its state; name the tables that are not read.

    A row that is not read is never decided: it has no half, and only what has one is.
    """
    found = Findings(transaction_id)
    rows = TableSearch(None, settings.channel_names(), found).search(settings.tables)
    if not rows.applies:
        for place, why in found.unread:
            warn(f"not searched: {place}: {why}")
        return
    state, sentence = conclude_rows(found, rows)
    document = {
        "transaction": transaction_id,
        "decision": None,
        "outcome": "refused",
        "standing": str(state),
        "why": advice(state),
        "found": sentence,
        "table_sources": ", ".join(found.databases),
    }
    _tell(document, manner)
    raise SystemExit(Exit.FINDINGS)


def _resolve_one(case: RequestedDecision, manner: _Manner) -> None:
    case.find()
    if not case.is_refused() and not manner.dry_run:
        if not manner.yes:
            _show(case.document())
            if not typer.confirm(f"{case.consequence()}. Go on?"):
                return
            case.find()  # the answer may have taken long
        if not case.is_refused():
            case.decide(manner.reason)
    _tell(case.document(), manner)
    if case.is_refused():
        raise SystemExit(Exit.FINDINGS)


def _resolve_all(bulk: Bulk, manner: _Manner) -> None:
    bulk.find()
    if bulk.possible() and not manner.dry_run:
        if not manner.yes:
            _show_bulk(bulk.document())
            if not typer.confirm(f"{bulk.possible()} transactions will be rolled back for good. Go on?"):
                return
        bulk.decide(manner.reason)
    if manner.as_json:
        print_json(bulk.document())
    else:
        _show_bulk(bulk.document())
    if not bulk.is_whole():
        raise SystemExit(Exit.FINDINGS)


def _tell(document: dict[str, Any], manner: _Manner) -> None:
    if manner.as_json:
        print_json(document)
    else:
        _show(document)


def _show_bulk(document: dict[str, Any]) -> None:
    console = PlainConsole()
    counts = f"{document['found']} undecided, {document['possible']} can be rolled back, {document['decided']} were"
    print_entry(console, f"channel {document['channel']}, group {document['group']}: {counts}")
    for refused in document["refused"]:
        print_entry(console, f"{refused['transactions']} refused: {refused['standing']}", refused["why"])
    for left in document["not_read"]:
        print_entry(console, f"not read: {left['place']} ({left['why']}); run it again")


def _show(document: dict[str, Any]) -> None:
    table = Table(show_header=False, title=f"transaction {document['transaction']}")
    for name, value in document.items():
        if value is not None and name != "transaction":
            shown = utc(value) if name.endswith("_ms") else str(value)
            table.add_row(name.removesuffix("_ms").replace("_", " "), shown)
    PlainConsole().print(table)
