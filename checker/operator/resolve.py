"""`outbox resolve`: an operator decides an undecided transaction, in the database first."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from checker.operator.case import Case
from checker.operator.options import ONE_COMMAND, BootstrapServers, ChannelName, Desk, parse_id
from checker.operator.rows import NO_INCARNATION
from checker.operator.rulings import Step
from outbox.errors import UsageError
from outbox.protocol.op import OpKind
from outbox.service.exits import Exit, guarded
from outbox.service.output import Json, PlainConsole, may_ask, print_json, utc

app = typer.Typer(help="Decide an undecided transaction by hand, in its database first.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
def resolve(
    transaction: Annotated[str, typer.Argument(help="Transaction id.", show_default=False)],
    commit: Annotated[bool, typer.Option("--commit", help="Its messages are delivered.")] = False,  # noqa: FBT002 - a flag
    rollback: Annotated[bool, typer.Option("--rollback", help="They never are.")] = False,  # noqa: FBT002 - a flag
    reason: Annotated[str, typer.Option(help="Why; it goes into the op topic with your name and the time.")] = "",
    incarnation: Annotated[
        str | None,
        typer.Option(
            help=f"Incarnation of its database that is gone for good, as its halves name it, or {NO_INCARNATION!r}."
        ),
    ] = None,
    min_age: Annotated[
        int, typer.Option(envvar="OUTBOX_TRANSACTION_TIMEOUT", min=0, help="What is younger, in ms, is not decided.")
    ] = 6_000,
    bootstrap_servers: BootstrapServers = None,
    channel: ChannelName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Decide COMMIT or ROLLBACK. It ends with 2 if it refuses, and says why; then nothing was decided."""

    def run() -> None:
        if commit == rollback:
            raise UsageError("give either --commit or --rollback")
        if not reason.strip():
            raise UsageError("give --reason: it goes into the op topic with your name")
        may_ask(yes=yes, as_json=as_json)
        id_, position = parse_id(transaction)
        if position is not None:
            raise UsageError(f"a transaction is decided as a whole: name it as {id_}")
        kind = OpKind.COMMIT if commit else OpKind.ROLLBACK
        case = Case(Desk(bootstrap_servers, channel), id_, kind, incarnation, min_age)
        tell = print_json if as_json else _show
        case.find()
        if case.ruling.step is not Step.REFUSE and not yes:
            _show(case.document())
            if not typer.confirm(f"{case.consequence()}. Go on?"):
                return
            case.find()  # the answer may have taken long
        if case.ruling.step is not Step.REFUSE:
            case.decide(reason)
        tell(case.document())
        if case.ruling.step is Step.REFUSE:
            raise SystemExit(Exit.FINDINGS)

    guarded(run)


def _show(document: dict[str, Any]) -> None:
    table = Table(show_header=False, title=f"transaction {document['transaction']}")
    for name, value in document.items():
        if value is not None and name != "transaction":
            shown = utc(value) if name.endswith("_ms") else str(value)
            table.add_row(name.removesuffix("_ms").replace("_", " "), shown)
    PlainConsole().print(table)
