"""`outbox checker`: run the checker, audit settlement."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from checker import metrics
from checker.self_check import examine
from checker.service import CheckerService
from checker.settings import CheckerSettings
from checker.upkeep.settlement_command import show_settlement
from outbox._cli.setting_options import Check, layers, setting_options
from outbox._service.run import check_service, run_service

app = typer.Typer(
    epilog=layers(CheckerSettings),
    help="Run the checker: it asks the callback tables what became of undecided transactions.",
)


@app.callback(invoke_without_command=True)
@setting_options(CheckerSettings)
def run(context: typer.Context, given: dict[str, Any], check: Check = False) -> None:  # noqa: FBT002 - a flag
    """Run the checker until SIGTERM."""
    context.obj = given
    if context.invoked_subcommand is not None:
        return
    if check:
        check_service(CheckerSettings, given, examine)
        return

    run_service(CheckerSettings, given, metrics.TABLE, CheckerService)


@app.command()
@setting_options(CheckerSettings, "channel")
def settlement(
    context: typer.Context,
    given: dict[str, Any],
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Find committed transactions that are not delivered though they are old; ends with 2 if there are any."""
    show_settlement(CheckerSettings(**context.obj | given), as_json=json)
