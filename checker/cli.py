"""`outbox checker`: run the checker, or check what it would find."""

from typing import Any

import typer

from checker import metrics
from checker.service import CheckerService
from checker.settings import CheckerSettings
from outbox._cli.setting_options import Check, layers, setting_options
from outbox._service.run import run_service

app = typer.Typer(
    epilog=layers(CheckerSettings),
    help="Run the checker: it asks the callback tables what became of undecided transactions.",
)


@app.callback(invoke_without_command=True)
@setting_options(CheckerSettings)
def run(given: dict[str, Any], check: Check = False) -> None:  # noqa: FBT002 - a flag
    """Run the checker until SIGTERM."""
    if check:
        # Not above: with SQLAlchemy it is half of what the start of a checker costs, which needs none of it.
        from checker.self_check import examine_checker  # noqa: PLC0415
        from outbox.operator.checks.checks import check_service  # noqa: PLC0415

        check_service(CheckerSettings, given, examine_checker)
    else:
        run_service(CheckerSettings, given, metrics.TABLE, CheckerService)
