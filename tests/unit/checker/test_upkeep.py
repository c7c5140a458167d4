"""Figures of the upkeep of the databases that are served."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

from structlog.testing import capture_logs

from checker import metrics
from checker.rules.settlement import Delay
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import LINES, DatabaseUpkeep, Upkeep
from checker.upkeep.walk import Undelivered
from outbox._settings.declared import CheckerDatabase

CHANNEL = SimpleNamespace(channel=SimpleNamespace(name="c"))
READER = cast("DeliveryReader", SimpleNamespace(channel=CHANNEL, read=None, rolled_back=None))
DATABASE = {"dsn": "postgresql://nobody@127.0.0.1:1/none"}
FIGURES = {
    "outbox_checker_purged_rows_total",
    "outbox_checker_undelivered",
    "outbox_checker_upkeep_completed_seconds",
}


def settings() -> CheckerSettings:
    return CheckerSettings(bootstrap_servers="127.0.0.1:1", channel="c")


def shown(database: str) -> set[str]:
    samples = (sample for family in metrics.TABLE.registry.collect() for sample in family.samples)
    return {one.name for one in samples if one.labels.get("database") == database} & FIGURES


def test_figures_of_a_database_are_there_from_the_beginning() -> None:
    upkeep = Upkeep(settings(), READER)
    upkeep.begin("shop", CheckerDatabase(**DATABASE))
    upkeep.stop()
    assert shown("shop") == FIGURES


def test_a_walk_logs_the_largest_findings_and_counts_the_rest() -> None:
    """A team can commit rows of as many services as it likes. The next walk logs others."""
    found = [Undelivered(f"s{n}", Delay.GONE, "", n, datetime.now(UTC), []) for n in range(1, 2 * LINES + 3)]
    upkeep = DatabaseUpkeep("shop", CheckerDatabase(**DATABASE), settings(), READER)
    walks = []
    for _ in range(3):
        with capture_logs() as logs:
            upkeep._log_undelivered(found)
        walks.append(logs)
    assert [len(logs) for logs in walks] == [LINES + 1, LINES + 1, 2]
    assert walks[0][0]["service"] == f"s{2 * LINES + 2}"
    rest = walks[0][-1]
    assert (rest["lines"], rest["count"]) == (LINES + 2, sum(range(1, LINES + 3)))
    with capture_logs() as logs:
        upkeep._log_undelivered(found)
    assert logs == []
