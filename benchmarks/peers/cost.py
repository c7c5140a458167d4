"""What one transaction's message costs the database: callback row and purge, beside an outbox table and DELETE."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, LiteralString, NamedTuple, Self

import psycopg

from benchmarks.application import Application, Tell
from benchmarks.checker.purge import EVERYTHING, connect_as_checker
from benchmarks.cpu import POSTGRES, cpu_us
from benchmarks.figures import Figure
from benchmarks.interleaved import interleave
from benchmarks.library.throughput import relays
from checker.upkeep.walk import OPTIONS, Purged, Walk
from outbox._postgres.callback_table import CallbackTable
from tests.support.harness import Site, wait_until
from tests.support.settling import settled_to

_THREADS = 8

_ROWS = "SELECT n_tup_ins + n_tup_upd, n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname = %s"
_SETTLED: LiteralString = (
    "SELECT half_topic_id::text, half_partition, max(last_offset) + 1 FROM {transaction} GROUP BY 1, 2"
)


class Cost(NamedTuple):
    """What one transaction costs.

    Args:
        cpu_us: Of all of Postgres' processes, µs.
    """

    wal_bytes: float
    rows: float
    dead_rows: float
    cpu_us: float

    def less(self, other: Self) -> Cost:
        """Return the difference."""
        return Cost(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def measure_cost(site: Site, application: Application, rounds: int, count: int) -> list[Figure]:
    """Measure what the message adds: the costs of a run without messaging are taken off in each round.

    Every run ends when all messages are delivered, their rows deleted and the table vacuumed.

    Args:
        site: Where; the relays are started here.
    """
    table = site.tables.transaction
    with relays(site) as running:

        def purged() -> None:
            running.wait_for_relay()
            _purge(site)

        runs = {
            "none": partial(_cost, site, application, application.no_messaging, None, lambda: None, count),
            "publish": partial(_cost, site, application, application.publish, table, purged, count),
            "insert": partial(
                _cost, site, application, application.insert, "ordinary_outbox", running.caught_up, count
            ),
        }
        running.caught_up()
        purged()
        found = interleave(runs, rounds)
    ours, beside = (
        [run.less(none) for run, none in zip(found[name], found["none"], strict=True)] for name in ("publish", "insert")
    )
    return [
        Figure(
            f"cost_{name}_vs_outbox_table",
            f"database cost of a transaction's message: {words}, {len(application.payload):,} B",
            unit,
            "outbox table, a polling relay and DELETE",
            [value(cost) for cost in ours],
            [value(cost) for cost in beside],
        )
        for name, words, unit, value in _MEASURES
    ]


_MEASURES: list[tuple[str, str, str, Callable[[Cost], float]]] = [
    ("wal_bytes", "WAL", "bytes", lambda cost: cost.wal_bytes),
    ("rows", "rows written", "rows", lambda cost: cost.rows),
    ("dead_rows", "rows left dead", "rows", lambda cost: cost.dead_rows),
    ("cpu_us", "CPU of Postgres", "µs", lambda cost: cost.cpu_us),
]


def _cost(
    site: Site,
    application: Application,
    tell: Tell,
    table: str | None,
    finish: Callable[[], None],
    count: int,
) -> Cost:
    with site.connect() as connection:
        connection.execute("CHECKPOINT")  # so that every run writes whole pages at their first change
        rows, spent = _rows(connection, table), _spent(connection)
        transactions = len(application.rate(tell, _THREADS, count // _THREADS).seconds)
        finish()
        if table is not None:
            connection.execute(f"VACUUM {table}".encode())
        wal_bytes, cpu_us = (now - then for now, then in zip(_spent(connection), spent, strict=True))
        written, dead = _more_rows(connection, table, rows, transactions)
        return Cost(*(each / transactions for each in (wal_bytes, written, dead, cpu_us)))


def _spent(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Bytes of the log, and µs of CPU."""
    ((wal,),) = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchall()
    return float(wal), cpu_us()[POSTGRES]


def _more_rows(
    connection: psycopg.Connection[Any], table: str | None, before: tuple[int, int], transactions: int
) -> tuple[int, int]:
    """Rows written and left dead since, once all connections have told their statistics: they do so a little later."""
    now = before

    def told() -> bool:
        nonlocal now
        now = _rows(connection, table)
        return min(now[0] - before[0], now[1] - before[1]) >= transactions

    if table is not None:
        wait_until(told)
    return now[0] - before[0], now[1] - before[1]


def _rows(connection: psycopg.Connection[Any], table: str | None) -> tuple[int, int]:
    found = connection.execute(_ROWS, (table,)).fetchall()
    return (int(found[0][0]), int(found[0][1])) if found else (0, 0)


def _purge(site: Site) -> None:
    """Purge all rows, as the checker does once they are settled and old."""
    table, purged = CallbackTable(site.tables), Purged()
    with connect_as_checker(site, OPTIONS) as connection:
        found = connection.execute(table.compose(_SETTLED)).fetchall()
        settled = {number: offset for _, number, offset in found}
        for topic in {topic for topic, _, _ in found}:
            walk = Walk(table, site.name, EVERYTHING, partial(settled_to, topic, settled))
            walk.run(connection, settled_to(topic, settled), purged.update)
