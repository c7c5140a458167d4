"""`outbox audit` among a hundred thousand messages: each fault found where it was planted, and nothing else ever."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import parquet
from sqlalchemy.orm import Session

from outbox import Message
from outbox._service.exit_codes import Exit
from spark_jobs.records.audit_verdicts import REPORTED, Verdict
from tests.support.auditing import GRACE_MS, QUICK, Audited, now, summary_of
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, wait_until
from tests.support.planting import Planter
from tests.support.shop import Shop

MESSAGES = 100_000
SETTLED_SECONDS = 400.0
PATIENT = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "3600000"}
"""So that the relay asks nobody while many halves wait for their rows."""

WINDOWS = 3
WINDOW_MS = 10_000
CLIENTS = 6
ROLLBACKS, KEYS = 0.1, 20


def reported(report: Path) -> dict[str, str]:
    """All that is in the findings, by message id."""
    rows = parquet.read_table(report / "findings").to_pylist()
    return {f"{row['transaction_id']}/{row['position']}": row["verdict"] for row in rows}


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_each_verdict_is_found_among_a_hundred_thousand_messages(site: Site, tmp_path: Path) -> None:
    site.create("orders", "stock", partitions=4)
    site.create_topics("overtaken", partitions=1)
    audited = Audited(site, tmp_path, start=now())
    site.relay(extra=PATIENT)
    site.checker(extra=QUICK)
    with Shop(site) as shop, Session(shop.engine) as undecided:
        planter = Planter(audited, shop)
        planter.begin()
        messages = (Message(site.topic("orders"), b"x" * 100, f"key{number}") for number in range(MESSAGES))
        delivered = publish_bulk(site, shop.outbox, messages)
        site.wait_settled(SETTLED_SECONDS)
        planter.finish(delivered)
        dangling = shop.outbox.publish(undecided, Message(site.topic("stock"), "open", "open"), eager=True)
        planter.expected[dangling.message_id] = Verdict.DANGLING
        wait_until(lambda: not site.settled())
        audited.end = now() + 1
        wait_until(lambda: now() > audited.end + GRACE_MS)
        database = {"dsn": site.postgres_url, "services": ["orders"], "table_prefix": site.name}
        alone = {"OUTBOX_POSTGRES_URL": None, "OUTBOX_DATABASES": json.dumps({"shop": database})}
        report = audited.run("planted", code=Exit.FINDINGS, **alone)
        undecided.rollback()
    summary = summary_of(report)
    expected = {id_: verdict for id_, verdict in planter.expected.items() if verdict in REPORTED}
    found, bulk = reported(report), set(delivered)
    # All halves of the bulk are stored before its first decision, so that many are decided late.
    assert {id_: verdict for id_, verdict in found.items() if id_ not in bulk or verdict != Verdict.LATE} == expected
    assert set(summary["verdicts"]) == set(Verdict)
    assert (summary["verdicts"]["ROLLED_BACK"], summary["verdicts"]["FOREIGN"]) == (1, 1)
    # Of the hundred thousand three are something else now; the later one of its key and the late one are right.
    right = summary["verdicts"]["DELIVERED_ONCE"] + summary["verdicts"]["LATE"]
    assert right == MESSAGES - 3 + 1 + 1


class Load:
    """Transactions of one to three messages all the time, one in ten rolled back after its halves were sent."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._stop = threading.Event()
        self._committed: list[int] = []

    def committed(self) -> int:
        return sum(self._committed)

    @contextmanager
    def on(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as clients:
            running = [clients.submit(self._run, random.Random(seed)) for seed in range(CLIENTS)]
            try:
                yield
            finally:
                self._stop.set()
        for client in running:
            client.result()

    def _run(self, chance: random.Random) -> None:
        while not self._stop.is_set():
            topics = chance.choices(["orders", "stock"], k=chance.randint(1, 3))
            key, rolls_back = f"key{chance.randrange(KEYS)}", chance.random() < ROLLBACKS
            with Session(self._shop.engine) as session:
                for topic in topics:
                    message = Message(self._shop.site.topic(topic), "x" * 100, key)
                    self._shop.outbox.publish(session, message, eager=True)
                session.rollback() if rolls_back else session.commit()
            if not rolls_back:
                self._committed.append(len(topics))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_windows_under_load_have_no_false_finding(site: Site, tmp_path: Path) -> None:
    """Windows begin and end amid transactions; the load goes on while they are audited, and the relay is restarted."""
    site.create("orders", "stock", partitions=4)
    relay = site.relay(extra=QUICK)
    site.checker(extra=QUICK)
    with Shop(site, publish_timeout_seconds=30) as shop:
        load = Load(shop)
        with load.on():
            site.wait_visible(1, "orders", "stock")
            for number in range(WINDOWS):
                audited = Audited(site, tmp_path, start=now())
                told, end = load.committed(), now() + WINDOW_MS
                wait_until(lambda end=end, told=told: now() > end and load.committed() > told + 200, 300)  # type: ignore[misc]
                relay.terminate()
                relay = site.relay(extra=QUICK)
                audited.end = now()
                site.wait_visible(load.committed(), "orders", "stock", timeout=300)
                wait_until(lambda end=audited.end: now() > end + GRACE_MS)  # type: ignore[misc]
                summary = summary_of(audited.run(f"window{number}", code=Exit.OK))
                assert set(summary["verdicts"]) <= {"DELIVERED_ONCE", "ROLLED_BACK", "LATE"}
                assert summary["verdicts"]["DELIVERED_ONCE"] > 100
                assert summary["verdicts"]["ROLLED_BACK"] > 0
