"""`outbox checker`: run the checker, or check what it would find."""

from typing import Any

from checker import metrics
from checker.service import CheckerService
from checker.settings import CheckerSettings
from outbox._cli.setting_options import Check, subcommand
from outbox._service.run import run_service


@subcommand(CheckerSettings)
def app(given: dict[str, Any], check: Check = False) -> None:
    """Run the checker: it asks the callback tables what became of undecided transactions."""
    if check:
        # Not above: with SQLAlchemy it is half of what the start of a checker costs, which needs none of it.
        from checker.self_check import examine_checker  # noqa: PLC0415
        from outbox.operator.checks.checks import check_service  # noqa: PLC0415

        check_service(CheckerSettings, given, examine_checker)
    else:
        run_service(CheckerSettings, given, metrics.TABLE, CheckerService)
