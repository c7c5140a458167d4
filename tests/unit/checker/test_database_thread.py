"""The thread of one database: what was not foreseen ends neither it nor the checker (R81)."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from structlog.testing import capture_logs

from checker.database import Database
from checker.rules.verdicts import Answers
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
