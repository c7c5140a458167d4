"""The fencing check-back on one database: how many transactions a second, and what an open one among them costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.checker.requests import commit_rows, make_requests
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from checker.fencing.fence import BATCH, Fence
from checker.rules.verdicts import Answers, Verdict
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import lock_number
from tests.support.harness import Site

ROUND = 1_000
"""Transactions of a check round with an open one among them."""

FAST = Target("ours", "at least", 10_000)
HARDLY_SLOWER = Target("ratio", "at most", 1.2)


def measure_fence(site: Site, rounds: int, transactions: int) -> list[Figure]:
    """Measure checks of one database: of transactions without a row, which take rollback rows, and of committed ones.

    Args:
        site: Its callback tables exist.
    """
    runs = {
        "rollback rows": partial(_check, site, transactions, committed=False),
        "inserts": partial(_insert, site, transactions),
        "rows": partial(_check, site, transactions, committed=True),
        "selects": partial(_select, site, transactions),
    }
    found = interleave(runs, rounds, partial(_empty, site))
    return [
        Figure(
            "fence_rollback_rows",
            "checks of transactions without a row, each with a rollback row",
            "transactions/s",
            f"the same rows by bare INSERTs of {BATCH}",
            found["rollback rows"],
            found["inserts"],
            FAST,
        ),
        Figure(
            "fence_rows",
            "checks of committed transactions",
            "transactions/s",
            f"bare SELECTs of {BATCH}",
            found["rows"],
            found["selects"],
            FAST,
        ),
    ]


def measure_open_transaction(site: Site, rounds: int) -> list[Figure]:
    """Measure a check round with one open local transaction among its transactions, beside one without.

    Args:
        site: Its callback tables exist.
    """
    runs = {
        "alone": partial(_round, site, lock=False, row=False),
        "open": partial(_round, site, lock=True, row=True),
        "without the lock": partial(_round, site, lock=False, row=True),
    }
    interleave(runs, 3, partial(_empty, site))  # all warm up
    found = interleave(runs, rounds, partial(_empty, site))
    title = f"check round of {ROUND:,} with one open transaction among them"
    return [
        Figure("open_transaction", title, "ms", "without it", found["open"], found["alone"], HARDLY_SLOWER),
        Figure(
            "open_transaction_without_the_lock",
            f"{title}, which did not take the advisory lock",
            "ms",
            "without it",
            found["without the lock"],
            found["alone"],
        ),
    ]


def _check(site: Site, count: int, *, committed: bool) -> float:
    fence = Fence(CallbackTable(site.tables), site.name)
    with site.connect() as connection:
        requests = make_requests(site, connection, count)
        if committed:
            commit_rows(site, connection, requests)
        began = time.perf_counter()
        answers = fence.check(connection, requests)
        seconds = time.perf_counter() - began
    _expect(answers, {Verdict.COMMITTED if committed else Verdict.FENCED: count})
    return count / seconds


def _expect(answers: Answers, expected: Mapping[Verdict, int]) -> None:
    """Look that the checker decided what it should have."""
    found = Counter(verdict for verdict, _ in answers.values())
    if found != expected:
        raise AssertionError(f"verdicts {dict(found)}, not {dict(expected)}")


def _round(site: Site, *, lock: bool, row: bool) -> float:
    fence = Fence(CallbackTable(site.tables), site.name)
    with site.connect() as connection:
        requests = make_requests(site, connection, ROUND)
        with _writer(site, requests[ROUND // 3], lock=lock) if row else nullcontext():
            began = time.perf_counter()
            answers = fence.check(connection, requests)
            seconds = time.perf_counter() - began
    _expect(answers, {Verdict.FENCED: ROUND - 1, Verdict.IN_FLIGHT: 1} if row else {Verdict.FENCED: ROUND})
    return seconds * 1_000


@contextmanager
def _writer(site: Site, request: CheckRequest, *, lock: bool) -> Iterator[None]:
    """Hold a local transaction with its row open during the block."""
    with site.connect() as connection, connection.transaction(force_rollback=True):
        if lock:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(request.transaction_id),))
        commit_rows(site, connection, [request])
        yield


def _insert(site: Site, count: int) -> float:
    with site.connect() as connection:
        requests = make_requests(site, connection, count)
        began = time.perf_counter()
        for some in _batches(requests):
            commit_rows(site, connection, some, state="R")
        return count / (time.perf_counter() - began)


def _select(site: Site, count: int) -> float:
    with site.connect() as connection:
        requests = make_requests(site, connection, count)
        commit_rows(site, connection, requests)
        began = time.perf_counter()
        for some in _batches(requests):
            _read(site, connection, some)
        return count / (time.perf_counter() - began)


def _read(site: Site, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> None:
    query = sql.SQL("SELECT transaction_id::text, state FROM {} WHERE transaction_id = ANY (%s::uuid[])")
    connection.execute(
        query.format(sql.Identifier(site.tables.transaction)), ([request.transaction_id for request in requests],)
    ).fetchall()


def _batches(requests: Sequence[CheckRequest]) -> Iterator[Sequence[CheckRequest]]:
    return (requests[start : start + BATCH] for start in range(0, len(requests), BATCH))


def _empty(site: Site) -> None:
    with site.connect() as connection:
        connection.execute(f"TRUNCATE {site.tables.transaction}".encode())
