"""Figures of the upkeep of the databases that are served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from checker import metrics
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import Upkeep
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
