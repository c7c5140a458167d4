"""How large a message table becomes while very many rows pass through it.

Rows are inserted and delivered. Then the same goes on while a transaction elsewhere in the database stays open, so that
vacuum can remove none of the deleted rows, and once more after that transaction has ended.

Rows pass as fast as the relay delivers. The server's autovacuum_naptime is then what the size depends on: no setting of
a table makes autovacuum come more often. docs/table_mode.md, "What is promised", has the rule.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString, NamedTuple

import psycopg

from benchmarks.figures import Figure, Target
from outbox._postgres.ddl import written
from outbox._postgres.message_table import MessageTable
from stack import Stack
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, relay_settings

NAPTIME = "10s"
"""What docs/table_mode.md recommends above 10,000 rows a second."""

LIMIT = Target("ratio", "at most", 1.1)

_ROWS_OF_A_TRANSACTION = 200
_WAITING_MAX = 50_000
"""Writers pause while more rows wait, as an application does whose relay is only just fast enough."""

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0
_MB = 1_000_000

_INSERT: LiteralString = (
    "INSERT INTO {message} (service, topic, key, value)"
    " SELECT 'bloat', %(topic)s, convert_to(n::text, 'UTF8'), convert_to(repeat('x', 256), 'UTF8')"
    " FROM generate_series(1, %(rows)s) n"
)
_SIZES: LiteralString = (
    "SELECT (SELECT count(*) FROM {message}), pg_table_size(%(message)s::regclass),"
    " pg_indexes_size(%(message)s::regclass), pg_total_relation_size(%(delivered)s::regclass)"
)
_PROVEN: LiteralString = "SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM {delivered}, unnest(ids) r"


class Size(NamedTuple):
    """Sizes after a number of delivered rows, MB; the table with its TOAST table, the evidence with its indexes."""

    delivered: int
    table: float
    indexes: float
    evidence: float


class _Traffic:
    def __init__(self, site: Site, table: MessageTable) -> None:
        self._site, self._table = site, table
        self._inserted = 0
        self._room = threading.Event()

    def run(self, rows: int) -> Size:
        """Insert rows and wait until all are delivered; return the sizes then."""
        began = time.monotonic()
        end = self._inserted + rows
        writer = threading.Thread(target=self._write, args=(rows,), daemon=True)
        self._room.set()
        writer.start()
        size = self._look()
        while size.delivered < end:
            if time.monotonic() > began + _PATIENCE_SECONDS * max(1, rows / 1_000_000):
                raise TimeoutError(f"{end - size.delivered:,} rows were not delivered\n{self._site.logs()}")
            if not writer.is_alive() and self._inserted < end:
                raise RuntimeError(f"the writer ended after {self._inserted:,} of {end:,} rows")
            time.sleep(_LOOK_SECONDS)
            size = self._look()
        writer.join()
        return size

    def _write(self, rows: int) -> None:
        insert, topic = self._table.compose(_INSERT), self._site.topic("orders")
        with psycopg.connect(self._site.postgres_url) as connection:
            for first in range(0, rows, _ROWS_OF_A_TRANSACTION):
                self._room.wait()
                some = min(_ROWS_OF_A_TRANSACTION, rows - first)
                connection.execute(insert, {"topic": topic, "rows": some})
                connection.commit()
                self._inserted += some

    def _look(self) -> Size:
        tables = self._site.tables
        names = {"message": self._table.full_name, "delivered": written(tables.schema, tables.delivered)}
        before = self._inserted  # read first: a row is counted as delivered only if it is surely gone
        with self._site.connect() as connection:
            row = connection.execute(self._table.compose(_SIZES), names).fetchone()
        waiting, table, index, evidence = map(int, row or (0, 0, 0, 0))
        (self._room.set if waiting < _WAITING_MAX else self._room.clear)()
        return Size(max(0, before - waiting), table / _MB, index / _MB, evidence / _MB)

    def require_proof(self) -> None:
        """Let the run fail if the evidence has not each row that was inserted."""
        ((proven,),) = self._site.sql(self._table.compose(_PROVEN))
        if proven != self._inserted:
            raise RuntimeError(f"{self._inserted:,} rows were inserted, {proven:,} are proven delivered")


@contextmanager
def _open_transaction(site: Site) -> Iterator[None]:
    with psycopg.connect(site.postgres_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


def measure_bloat(rows: int) -> list[Figure]:
    """Let rows pass through a message table on servers of its own, and measure its sizes, once.

    Args:
        rows: Of the first two phases; each of the other two has a tenth of them.
    """
    with (
        Stack(postgres_settings={"autovacuum_naptime": NAPTIME}) as stack,
        Site(stack.bootstrap_servers, stack.postgres_url) as site,
    ):
        site.create("orders")
        traffic = _Traffic(site, create(site))
        relay = site.relay(extra=relay_settings(site, OUTBOX_BATCH_MESSAGES="5000"))
        wait_until(lambda: "Table source taken over" in relay.output(), explain=site.logs)
        tenth = rows // 10
        first, whole = traffic.run(tenth), traffic.run(rows - tenth)
        with _open_transaction(site):
            held = traffic.run(tenth)
        after = traffic.run(tenth)
        traffic.require_proof()
    passed = f"after {whole.delivered:,} rows passed, autovacuum_naptime {NAPTIME}"

    def figure(name: str, title: str, ours: float, baseline: str, beside: float, target: Target | None) -> Figure:
        return Figure(f"table_size_{name}", title, "MB", baseline, [ours], [beside], target)

    early = f"after the first {first.delivered:,}"
    return [
        figure("table", f"message table {passed}", whole.table, early, first.table, LIMIT),
        figure("indexes", f"its indexes {passed}", whole.indexes, early, first.indexes, LIMIT),
        figure("evidence", f"evidence {passed}", whole.evidence, early, first.evidence, None),
        figure(
            "open",
            f"message table after {tenth:,} more beside an open transaction",
            held.table,
            "before",
            whole.table,
            None,
        ),
        figure("closed", f"message table after {tenth:,} more after its end", after.table, "before", held.table, None),
    ]
