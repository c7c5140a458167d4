"""The thread of one database: what was not foreseen ends neither it nor the checker (R81); figures of its upkeep."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from checker import metrics
from checker.database import Database
from checker.rules.verdicts import Answers
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import Upkeep
from outbox._settings.declared import CheckerDatabase
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.positions import Positions
from tests.support.harness import wait_until
from tests.support.protocol_documents import TOPIC, TRANSACTION

REQUEST = CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, Positions.first(1), 100, 100, 4)
NOWHERE = CheckerDatabase(dsn="postgresql://nobody@127.0.0.1:1/none")


def test_a_batch_that_fails_unforeseen_leaves_the_next_one() -> None:
    answered: queue.Queue[Sequence[CheckRequest]] = queue.Queue()
    fails = [True]

    def report(requests: Sequence[CheckRequest], _answers: Answers) -> None:
        if fails.pop():
            raise LookupError("a bug")
        answered.put(requests)

    database = Database("shop", NOWHERE, "c", report)
    with capture_logs() as logs:
        database.start()
        database.ask([REQUEST])
        wait_until(lambda: "LookupError: a bug" in database.failing, 30)
        fails.append(False)
        database.ask([REQUEST])
        assert answered.get(timeout=30) == [REQUEST]
        wait_until(lambda: not database.failing, 30)
        database.retire()
        assert database.wait(30)
    lines: list[Any] = [line for line in logs if line["event"].startswith("Check requests not answered")]
    assert [(line["database"], bool(line["exc_info"])) for line in lines] == [("shop", True)]


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
