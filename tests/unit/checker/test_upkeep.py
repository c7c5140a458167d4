"""Upkeep comes and goes with the databases that are served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from checker import metrics
from checker.settings import CheckerSettings, DatabaseSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import DatabaseUpkeep, Upkeep

CHANNEL = SimpleNamespace(channel=SimpleNamespace(name="c"))
READER = cast("DeliveryReader", SimpleNamespace(channel=CHANNEL, read=None, rolled_back=None))
DATABASE = {"dsn": "postgresql://nobody@127.0.0.1:1/none"}
FIGURES = {
    "outbox_checker_purged_rows_total",
    "outbox_checker_undelivered",
    "outbox_checker_upkeep_completed_seconds",
}


def settings() -> CheckerSettings:
    return CheckerSettings.model_validate({"bootstrap_servers": "127.0.0.1:1", "channel": "c"})


def shown(database: str) -> set[str]:
    """Return the metrics of a database's upkeep."""
    samples = (sample for family in metrics.TABLE.registry.collect() for sample in family.samples)
    return {one.name for one in samples if one.labels.get("database") == database} & FIGURES


def test_figures_of_a_database_come_and_go_with_it() -> None:
    upkeep = Upkeep(settings(), READER)
    database = DatabaseSettings.model_validate(DATABASE)
    upkeep.begin("shop", database)
    assert shown("shop") == FIGURES
    upkeep.end("shop")
    assert shown("shop") == set()


def test_what_ends_late_leaves_no_figure_behind() -> None:
    database = DatabaseSettings.model_validate(DATABASE)
    one = DatabaseUpkeep("late", database, settings(), READER)
    one._show(lambda: metrics.purged("late", {"C": 3}))
    labels = {"channel": "", "database": "late", "state": "C"}
    assert metrics.TABLE.registry.get_sample_value("outbox_checker_purged_rows_total", labels) == 3
    one.forget()
    one._show(lambda: metrics.purged("late", {"C": 3}))
    assert shown("late") == set()
