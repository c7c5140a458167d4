"""The thread of one database: what was not foreseen ends neither it nor the checker (R81); figures of its upkeep."""

import queue
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from checker import metrics
from checker.database import Database
from checker.rules.settlement import Delay
from checker.rules.verdicts import Answers
from checker.settings import CheckerSettings
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.service import LINES, DatabaseUpkeep
from checker.upkeep.walk import Undelivered
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
FIGURES = {"outbox_checker_undelivered", "outbox_checker_upkeep_completed_seconds"}


def settings() -> CheckerSettings:
    return CheckerSettings(bootstrap_servers="127.0.0.1:1", channel="c")


def shown(database: str) -> set[str]:
    samples = (sample for family in metrics.TABLE.registry.collect() for sample in family.samples)
    return {one.name for one in samples if one.labels.get("database") == database} & FIGURES


def test_figures_of_a_database_are_there_from_the_beginning() -> None:
    upkeep = DatabaseUpkeep("shop", CheckerDatabase(**DATABASE), settings(), READER)
    upkeep.start()
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
