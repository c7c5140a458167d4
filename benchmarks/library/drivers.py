"""Table mode of an asyncio application: asyncpg beside psycopg, and each beside an outbox-table insert of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks.application import THREADS, Application
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox import AsyncOutbox
from tests.support.harness import Site

DRIVERS = {"asyncpg": "asyncpg", "psycopg": "psycopg_async"}
"""SQLAlchemy's names of the drivers, by the names that people use."""

AsyncTell = Callable[[AsyncSession, bytes], Awaitable[object]]
"""Tells others, in an async session's transaction; the bytes are the message's key."""


class AsyncApplication:
    """The application on asyncio: as many tasks as the other one has threads, with a connection each.

    Args:
        application: Whose business table, messages and tables are used.
        runner: Of the event loop, which lives as long as the connections.
        driver: SQLAlchemy's name of the driver.
    """

    def __init__(self, site: Site, application: Application, runner: asyncio.Runner, driver: str) -> None:
        self._application = application
        self._runner = runner
        self._outbox = AsyncOutbox.over(application.table_outbox)
        url = site.postgres_url.replace("postgresql://", f"postgresql+{driver}://", 1)
        self._engine: AsyncEngine = create_async_engine(url, pool_size=THREADS)

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._engine.dispose())

    async def publish(self, session: AsyncSession, key: bytes) -> None:
        """`publish()` in table mode."""
        await self._outbox.publish(session, self._application.message(key))

    async def insert(self, session: AsyncSession, key: bytes) -> None:
        """Insert a row into an ordinary outbox table."""
        await session.run_sync(self._application.insert, key)

    def per_second(self, tell: AsyncTell, seconds: float) -> float:
        """Return the transactions per second that all tasks reach together in so many seconds."""
        return self._runner.run(self._together(tell, seconds))

    async def _together(self, tell: AsyncTell, seconds: float) -> float:
        began = time.perf_counter()

        def numbers(task: int) -> Iterator[int]:
            return itertools.takewhile(lambda _: time.perf_counter() < began + seconds, itertools.count(task, THREADS))

        done = await asyncio.gather(*(self._work(tell, numbers(task)) for task in range(THREADS)))
        return sum(done) / (time.perf_counter() - began)

    async def _work(self, tell: AsyncTell, numbers: Iterator[int]) -> int:
        done = 0
        for number in numbers:
            async with AsyncSession(self._engine) as session, session.begin():
                await session.run_sync(self._application.update, number)
                await tell(session, str(number).encode())
            done += 1
        return done


def measure_drivers(
    site: Site, application: Application, rounds: int, seconds: float, between: Callable[[], None]
) -> list[Figure]:
    """Measure `AsyncOutbox` in table mode on asyncpg beside psycopg, and both beside an insert by the same driver.

    Args:
        site: Where; the relays run.
        application: Warm.
    """
    with ExitStack() as running:
        runner = running.enter_context(asyncio.Runner())
        runs = {}
        for name, driver in DRIVERS.items():
            one = AsyncApplication(site, application, runner, driver)
            running.callback(one.close)
            runs[f"{name} insert"] = partial(one.per_second, one.insert, seconds)
            runs[name] = partial(one.per_second, one.publish, seconds)
        found = interleave(runs, rounds, between, warm=True)
    words = f"{THREADS} tasks, AsyncOutbox in table mode, with its relay running"

    def figure(name: str, ours: str, baseline: str, beside: str, target: Target | None = None) -> Figure:
        return Figure(name, f"{words}, {ours}", "transactions/s", baseline, found[ours], found[beside], target)

    return [
        figure("table_app_tps_asyncpg_vs_psycopg", "asyncpg", "the same on psycopg", "psycopg"),
        *(
            figure(
                f"table_app_tps_{name}_vs_outbox_insert",
                name,
                "outbox-table insert by the same driver",
                f"{name} insert",
                Target("ratio", "at least", 0.9),
            )
            for name in DRIVERS
        ),
    ]
