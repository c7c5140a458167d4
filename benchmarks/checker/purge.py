"""How fast rows are purged, what an application feels of it, and whether the table keeps its size."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, LiteralString

import psycopg

from benchmarks.application import Application
from benchmarks.figures import Figure, Target
from checker.connection import connect
from checker.rules.settlement import Ages
from checker.settings import DatabaseSettings
from checker.upkeep.walk import OPTIONS, PACE, PAGE, Purged, Walk
from outbox._postgres.callback_table import CallbackTable
from tests.support.harness import Site, wait_until
from tests.support.settling import settled_to

THREADS = 4
EVERYTHING = Ages(settled=-3_600_000, rollback_rows=3_600_000, undelivered=0)
"""Every row is old enough."""

_ANOTHER_TOPIC = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
"""So that the application's own rows, which are alive, stay."""

_FILL: LiteralString = """
INSERT INTO {transaction}
SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - %s + number), 12, '0') || '7000'
        || '8' || substr(md5(number::text || now()::text), 1, 15))::uuid,
       'bench', 'C', %s, %s::uuid, number %% 4, number, number, '0', now()
  FROM generate_series(1, %s) AS number
"""


_SCAN: LiteralString = "SELECT count(*) FROM {transaction} WHERE state = 'R'"


PACES = {"": (PACE, "with its pauses"), "_flat_out": (0.0, "without pauses")}
"""The purge as it is, and as fast as it can: rate and latency are asked of the same purge, so both of each."""


def measure_rate(site: Site, rounds: int, rows: int) -> list[Figure]:
    """Measure the purge beside one DELETE of as many rows, each in every place of the order in turn.

    Args:
        site: Its tables exist.
    """
    runs: dict[str, Callable[[], float]] = {
        suffix: partial(_seconds_of_purge, site, rows, pace) for suffix, (pace, _) in PACES.items()
    }
    found = in_changing_order(
        {**runs, "delete": partial(_seconds_of_one_delete, site)}, rounds, partial(_fill, site, rows)
    )
    rates = {name: [rows / seconds for seconds in taken] for name, taken in found.items()}
    target = Target("ours", "at least", 50_000)
    return [
        Figure(
            f"purge_rate{suffix}",
            f"purge of {rows:,} settled rows, in transactions of {PAGE:,}, {words}",
            "rows/s",
            "one DELETE of all",
            rates[suffix],
            rates["delete"],
            target,
        )
        for suffix, (_, words) in PACES.items()
    ]


def in_changing_order(
    runs: Mapping[str, Callable[[], float]], rounds: int, before: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Run all in turn, so many times, and begin each round with another one.

    What a purge leaves to vacuum is done while the next one runs: it should not always be the same one's burden.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = deque(runs)
    for _ in range(rounds):
        for name in names:
            before()
            found[name].append(runs[name]())
        names.rotate(-1)
    return found


def measure_audit(site: Site, rounds: int, rows: int) -> list[Figure]:
    """Measure the settlement audit of delivered rows beside a scan of the table.

    Args:
        site: Its tables exist.
    """
    progress = settled_to(_ANOTHER_TOPIC, dict.fromkeys(range(4), rows + 1))
    walk = Walk(CallbackTable(site.tables), site.name, EVERYTHING, lambda: progress, purges=False)
    _fill(site, rows)
    audited, scanned = [], []
    for _ in range(rounds):
        with connect_as_checker(site, OPTIONS) as connection:
            began = time.perf_counter()
            walk.run(connection, progress, lambda _: None)
            audited.append(rows / (time.perf_counter() - began))
        with site.connect() as connection:
            began = time.perf_counter()
            connection.execute(
                CallbackTable(site.tables).compose("SELECT count(*) FROM {transaction} WHERE state = 'R'")
            )
            scanned.append(rows / (time.perf_counter() - began))
    _delete_all(site)
    title = f"settlement audit of {rows:,} delivered rows"
    return [Figure("audit_rate", title, "rows/s", "one scan of the table", audited, scanned)]


def measure_latency(site: Site, application: Application, rounds: int, rows: int) -> list[Figure]:
    """Measure the application's transactions while rows are purged, beside as long a time in which none are.

    Args:
        site: Its tables exist.
        rounds: How often both run, in turn; each begins every other round.
    """
    return [
        Figure(
            f"purge_latency_p99{suffix}",
            f"p99 of publish() in {THREADS} threads while {rows:,} rows are purged {words}",
            "ms",
            "while none are",
            *_latencies(site, application, rounds, rows, pace),
            Target("ratio", "at most", 1.2),
        )
        for suffix, (pace, words) in PACES.items()
    ]


def _latencies(
    site: Site, application: Application, rounds: int, rows: int, pace: float
) -> tuple[list[float], list[float]]:
    _fill(site, rows)
    seconds = _seconds_of_purge(site, rows, pace)  # so that the quiet time can come first

    def quiet() -> float:
        return _p99_ms(application, partial(time.sleep, seconds))

    def purged() -> float:
        _fill(site, rows)
        return _p99_ms(application, lambda: _seconds_of_purge(site, rows, pace))

    found = in_changing_order({"purged": purged, "quiet": quiet}, rounds)
    return found["purged"], found["quiet"]


def measure_size(site: Site, cycles: int, rows: int) -> list[Figure]:
    """Measure table and index after many cycles of inserts and purge, beside their size after the first one.

    Args:
        site: Its tables exist.
    """
    with site.connect() as connection:
        connection.execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute(CallbackTable(site.tables).compose("VACUUM FULL {transaction}"))
    sizes = []
    for _ in range(cycles):
        _fill(site, rows)
        _seconds_of_purge(site, rows, pace=PACE)
        wait_until(lambda: _dead(site) < rows / 2, 120)
        sizes.append(_megabytes(site))
    half = len(sizes) // 2
    title = f"table and index after {cycles} cycles of {rows:,} rows inserted and purged"
    target = Target("ratio", "at most", 1.5)
    later, first = [max(sizes[half:])], [max(sizes[:half])]
    return [Figure("purge_size", title, "MiB", "the largest of the first half", later, first, target)]


def _fill(site: Site, rows: int) -> None:
    with site.connect() as connection:
        query = CallbackTable(site.tables).compose(_FILL)
        connection.execute(query, (rows + 86_400_000, site.name, _ANOTHER_TOPIC, rows))


def connect_as_checker(site: Site, options: str) -> psycopg.Connection[Any]:
    """Return a connection as the checker makes it, with options of the server."""
    database = DatabaseSettings.model_validate({"dsn": site.postgres_url, "table_prefix": site.name})
    return connect(database, "benchmark", options)


def _seconds_of_purge(site: Site, rows: int, pace: float) -> float:
    total, progress = Purged(), settled_to(_ANOTHER_TOPIC, dict.fromkeys(range(4), rows + 1))
    walk = Walk(CallbackTable(site.tables), site.name, EVERYTHING, lambda: progress, pace=pace)
    with connect_as_checker(site, OPTIONS) as connection:
        began = time.perf_counter()
        walk.run(connection, progress, total.update)
        seconds = time.perf_counter() - began
    if total["C"] != rows:
        raise RuntimeError(f"{total['C']} Rows purged, not {rows}")
    return seconds


def _seconds_of_one_delete(site: Site) -> float:
    began = time.perf_counter()
    _delete_all(site)
    return time.perf_counter() - began


def _delete_all(site: Site) -> None:
    with site.connect() as connection:
        query = CallbackTable(site.tables).compose("DELETE FROM {transaction} WHERE half_topic_id = %s::uuid")
        connection.execute(query, (_ANOTHER_TOPIC,))


def _p99_ms(application: Application, meanwhile: Callable[[], object]) -> float:
    """Of the application's transactions while something runs."""
    taken: list[float] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            taken.extend(application.seconds_each(application.publish, 1))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    return sorted(taken)[len(taken) * 99 // 100] * 1e3


def _dead(site: Site) -> int:
    """Dead rows, as the statistics say; an autovacuum takes them away."""
    with site.connect() as connection:
        query = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = %s"
        ((dead,),) = connection.execute(query, (site.tables.transaction,)).fetchall()
    return int(dead)


def _megabytes(site: Site) -> float:
    with site.connect() as connection:
        query = "SELECT pg_total_relation_size(%s::regclass)"
        ((size,),) = connection.execute(query, (site.tables.transaction,)).fetchall()
    return float(size) / 2**20
