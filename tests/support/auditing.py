"""A window on a site, and audits of it."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import parquet
from sqlalchemy.orm import Session

from outbox import Message, Receipt
from outbox._service.exit_codes import Exit
from outbox.testing import VisibleRecord
from tests.support.commands import ran
from tests.support.harness import Site, wait_until
from tests.support.shop import Shop
from tests.support.spark import SETTINGS

GRACE_MS = 3_000
RUN_SECONDS = 240
TRANSACTIONS = 12
ROLLED_BACK = 3

QUICK = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "300", "OUTBOX_CHECK_INTERVAL_MS": "300"}


@dataclass
class Audited:
    """A window on a site: what was told in it, and audits of it."""

    site: Site
    folder: Path
    start: int = 0
    end: int = 0
    told: list[Receipt] = field(default_factory=list)
    said: str = ""  # of the last audit

    def tell(self) -> None:
        """Transactions of two messages each, a few of them rolled back; all are settled afterwards."""
        self.start = now()
        with Shop(self.site) as shop:
            for number in range(TRANSACTIONS):
                with shop.session() as session:
                    self.told += [shop.publish(session, topic, str(number), "key") for topic in ("orders", "stock")]
            for number in range(ROLLED_BACK):
                self.withdraw(shop, str(number))
        self.site.wait_visible(2 * TRANSACTIONS, "orders", "stock")
        self.site.wait_settled()
        self.end = now() + 1
        wait_until(lambda: now() > self.end + GRACE_MS)

    def withdraw(self, shop: Shop, value: str) -> None:
        """A transaction that is rolled back after its half was stored."""
        before = len(self.site.halves())
        with Session(shop.engine) as session:
            shop.outbox.publish(session, Message(self.site.topic("orders"), value, "key"), eager=True)
            wait_until(lambda: len(self.site.halves()) > before)
            session.rollback()

    def arguments(self, output: str, *more: str) -> list[str]:
        window = ["--from", str(self.start), "--to", str(self.end), "--grace-ms", str(GRACE_MS)]
        return [*window, "--output", str(self.folder / output), *more]

    def run(self, output: str, *more: str, code: Exit, **variables: str | None) -> Path:
        command = [sys.executable, "-m", "outbox", "audit", *self.arguments(output, *more)]
        return self.finish(command, output, code, **variables)

    def finish(self, command: Sequence[str], output: str, code: Exit, **variables: str | None) -> Path:
        """Run a command to its end, with more variables in its environment; None: without one."""
        self._printed(command, code, **variables)
        [report] = (self.folder / output).iterdir()
        return report

    def refused(self, output: str, code: Exit, **variables: str | None) -> str:
        return self._printed([sys.executable, "-m", "outbox", "audit", *self.arguments(output)], code, **variables)

    def _printed(self, command: Sequence[str], code: Exit, **variables: str | None) -> str:
        given = {**self.site.environment(), "OUTBOX_SPARK": json.dumps(SETTINGS), **variables}
        environment = {name: value for name, value in given.items() if value is not None}
        result = ran(command, env=environment, timeout=RUN_SECONDS)
        self.said = result.stdout + result.stderr
        assert result.returncode == code, self.said
        return self.said

    def clean(self) -> Path:
        output = self.folder / "clean"
        return next(output.iterdir()) if output.exists() else self.run("clean", code=Exit.OK)

    def records(self) -> dict[str, VisibleRecord]:
        return {record.message_id: record for record in self.site.read("orders", "stock")}

    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Any, timestamp: int | None = None
    ) -> None:
        """A record that no relay wrote; without a timestamp it has the time of now."""
        self.site.produce(topic, value, key, headers=list(headers), timestamp=now() if timestamp is None else timestamp)

    def execute(self, query: str, *parameters: object) -> None:
        self.site.sql(query.format(site=self.site.tables), *parameters)


def now() -> int:
    return time.time_ns() // 1_000_000


def summary_of(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((report / "summary.json").read_text())
    return found


def findings_of(report: Path) -> dict[str, str]:
    """Verdicts by message id, of all that was reported but LATE."""
    rows = parquet.read_table(report / "findings").to_pylist()
    return {f"{row['transaction_id']}/{row['position']}": row["verdict"] for row in rows if row["verdict"] != "LATE"}
