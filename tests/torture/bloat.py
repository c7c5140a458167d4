"""`python -m tests.torture.bloat`: how large a message table becomes while very many rows pass through it.

Rows are inserted and delivered. Then the same goes on while a transaction elsewhere in the database stays open, so that
vacuum can remove none of the deleted rows, and once more after that transaction has ended.

Rows pass as fast as the relay delivers. The server's autovacuum_naptime is then what the size depends on: no setting of
a table makes autovacuum come more often. docs/table_mode.md, "What is promised", has the rule.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, LiteralString

import psycopg
import typer
from rich.table import Table

from benchmarks.environment import environment
from outbox._postgres.ddl import written
from outbox._postgres.message_table import MessageTable
from stack import Stack
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, relay_settings
from tests.support.reports import CONSOLE, figures, finish
from tests.support.signals import end_in_order

ROWS = 10_000_000
NAPTIME = "10s"
"""What docs/table_mode.md recommends for so many rows a second."""

LIMIT = 2.0
"""How much larger than after the first tenth the table may be at the end."""

_ROWS_OF_A_TRANSACTION = 200
_WAITING_MAX = 50_000
"""Writers pause while more rows wait, as an application does whose relay is only just fast enough."""

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0

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

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Size:
    delivered: int
    waiting: int
    table_bytes: int  # the message table with its TOAST table, bytes
    index_bytes: int
    evidence_bytes: int  # the evidence of delivered messages, with its indexes, bytes


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    rows: int
    seconds: float  # from its first insert until the table was empty
    end: Size

    @property
    def per_second(self) -> float:
        return self.rows / self.seconds


@dataclass(slots=True)
class BloatResult:
    rows: int
    naptime: str
    phases: list[Phase] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def judge(self) -> None:
        first, second = self.phases[0].end, self.phases[1].end
        for what in ("table_bytes", "index_bytes"):
            before, after = getattr(first, what), getattr(second, what)
            if after > LIMIT * before:
                self.wrong.append(
                    f"{what} is {after:,} after {second.delivered:,} rows, {before:,} after {first.delivered:,}"
                )


class _Traffic:
    def __init__(self, site: Site, table: MessageTable, say: Say) -> None:
        self._site, self._table, self._say = site, table, say
        self._inserted = 0
        self._room = threading.Event()

    def run(self, name: str, rows: int) -> Phase:
        """Insert rows and wait until all are delivered; return how long that took, and the sizes at its end."""
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
        phase = Phase(name, rows, time.monotonic() - began, size)
        self._say(f"{name}: {rows:,} rows, {phase.per_second:,.0f}/s, table {size.table_bytes:,} bytes")
        return phase

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
        return Size(max(0, before - waiting), waiting, table, index, evidence)

    def proven(self) -> int:
        return int(self._site.sql(self._table.compose(_PROVEN))[0][0])


@contextmanager
def _open_transaction(site: Site) -> Iterator[None]:
    with psycopg.connect(site.postgres_url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


def bloat(rows: int, naptime: str, say: Say) -> BloatResult:
    """Start everything, let rows pass through a message table, and return its sizes; nothing is left running.

    `rows`: rows of the first two phases; each of the other two has a tenth of them.
    """
    settings = {"autovacuum_naptime": naptime}
    with Stack(postgres_settings=settings) as stack, Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create("orders")
        table = create(site)
        relay = site.relay(extra=relay_settings(site, OUTBOX_BATCH_MESSAGES="5000"))
        wait_until(lambda: "Table source taken over" in relay.output(), explain=site.logs)
        traffic, result, tenth = (
            _Traffic(site, table, say),
            BloatResult(rows, naptime, environment=environment(stack)),
            rows // 10,
        )
        result.phases.append(traffic.run("the first tenth", tenth))
        result.phases.append(traffic.run("the other nine tenths", rows - tenth))
        with _open_transaction(site):
            result.phases.append(traffic.run("a transaction stays open", tenth))
        result.phases.append(traffic.run("after its end", tenth))
        result.judge()
        inserted, proven = sum(phase.rows for phase in result.phases), traffic.proven()
        if proven != inserted:
            result.wrong.append(f"{inserted:,} rows were inserted, {proven:,} are proven delivered")
    return result


def _table(result: BloatResult) -> Table:
    title = f"size of a message table, autovacuum_naptime {result.naptime}"
    table = Table("phase", "rows", "rows/s", "table, MB", "indexes, MB", "evidence, MB", title=title)
    for phase in result.phases:
        sizes = (phase.end.table_bytes, phase.end.index_bytes, phase.end.evidence_bytes)
        figures = (f"{size / 1e6:,.1f}" for size in sizes)
        table.add_row(phase.name, f"{phase.rows:,}", f"{phase.per_second:,.0f}", *figures)
    return table


def main(
    rows: Annotated[int, typer.Option(min=10, help="Rows of the first two phases.")] = ROWS,
    naptime: Annotated[str, typer.Option(help="Postgres's autovacuum_naptime; its own default is 1min.")] = NAPTIME,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("build/torture/bloat.json"),
) -> None:
    """Let very many rows pass through a message table; ends with 2 if it grew, or if rows are not proven delivered."""
    end_in_order()
    result = bloat(rows, naptime, CONSOLE.print)
    wrong = figures("wrong", (("wrong", sentence) for sentence in result.wrong))
    finish(report, asdict(result), _table(result), *([wrong] if result.wrong else []), wrong=result.wrong)


if __name__ == "__main__":
    typer.run(main)
