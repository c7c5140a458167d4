"""Upkeep comes and goes with the databases that are served."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checker import metrics
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import DatabaseUpkeep, Upkeep
from outbox._settings.declared import CheckerDatabase

CHANNEL = SimpleNamespace(channel=SimpleNamespace(name="c"))
READER = cast("DeliveryReader", SimpleNamespace(channel=CHANNEL, read=None, rolled_back=None))
DATABASE = {"dsn": "postgresql://nobody@127.0.0.1:1/none"}
PURGE = {"outbox_checker_purged_rows_total", "outbox_checker_purge_completed_seconds"}
AUDIT = {"outbox_checker_undelivered", "outbox_checker_settlement_completed_seconds"}


def settings(*, purge: bool = True) -> CheckerSettings:
    return CheckerSettings(bootstrap_servers="127.0.0.1:1", channel="c", purge=purge)


def shown(database: str) -> set[str]:
    """Return the metrics of a database's upkeep."""
    samples = (sample for family in metrics.TABLE.registry.collect() for sample in family.samples)
    return {one.name for one in samples if one.labels.get("database") == database} & (PURGE | AUDIT)


@pytest.fixture
def upkeep() -> Iterator[Upkeep]:
    made = Upkeep(settings(), READER)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("purge", "more", "figures"),
    [(True, {}, PURGE | AUDIT), (True, {"read_only": True}, AUDIT), (False, {}, AUDIT)],
)
def test_each_database_is_audited_and_purged_where_that_may_be(
    purge: bool,  # noqa: FBT001 - a parameter of the test
    more: dict[str, Any],
    figures: set[str],
) -> None:
    upkeep = Upkeep(settings(purge=purge), READER)
    database = CheckerDatabase(**DATABASE | more)
    assert upkeep.purges(database) is (figures > AUDIT)
    upkeep.begin("shop", database)
    assert shown("shop") == figures
    upkeep.end("shop")
    assert shown("shop") == set()


def test_a_database_that_becomes_read_only_loses_the_figures_of_its_purge(upkeep: Upkeep) -> None:
    upkeep.begin("stock", CheckerDatabase(**DATABASE))
    upkeep.end("stock")
    upkeep.begin("stock", CheckerDatabase(**{**DATABASE, "read_only": True}))
    assert shown("stock") == AUDIT


def test_what_ends_late_leaves_no_figure_behind() -> None:
    database = CheckerDatabase(**DATABASE)
    one = DatabaseUpkeep("late", database, settings(), READER, purge=True)
    one._show(lambda: metrics.purged("late", {"C": 3}))
    labels = {"channel": "", "database": "late", "state": "C"}
    assert metrics.TABLE.registry.get_sample_value("outbox_checker_purged_rows_total", labels) == 3
    one.forget()
    one._show(lambda: metrics.purged("late", {"C": 3}))
    assert shown("late") == set()
