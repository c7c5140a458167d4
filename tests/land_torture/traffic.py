"""Records that go on coming while the job is killed: transactions of all sizes, aborted ones, ones that stay open."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.support.harness import Site
from tests.support.relaying import RelayedTopics

_PAUSE_SECONDS = 0.2
_MOST_ROWS = 60
_COMMITS = 0.75
"""Share of the transactions that commit."""
_LINGERS = 0.05
"""Chance that a transaction is begun which stays open for a while."""
_OPEN_SECONDS = (0.5, 4.0)
_KEYS = 200
"""So few that most batches change and delete some that others had."""


@contextmanager
def beside(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run something in a thread while the block lasts: until its event is set."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=[stop])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Traffic:
    """Writes to topics while it is on. `topics`: their full names."""

    def __init__(self, site: Site, topics: Sequence[str], seed: int) -> None:
        self.committed = 0  # records of transactions that committed
        self.aborted = 0  # records of those that were aborted
        self.lingering = 0
        self._site = site
        self._topics = topics
        self._chance = random.Random(seed)
        self._steady = RelayedTopics(site, topics, 0, seed, _KEYS)
        self._slow = RelayedTopics(site, topics, 1, seed, _KEYS)
        self._trouble: BaseException | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Write while the block lasts; nothing is open afterwards."""
        with beside(self._run):
            yield
        if self._trouble is not None:
            raise self._trouble

    def grow(self, topic: str) -> int:
        """Add a partition to a topic; how many it has then."""
        partitions = self._partitions(topic) + 1
        self._site.grow(topic, partitions=partitions)
        return partitions

    def _partitions(self, topic: str) -> int:
        return len(self._site.admin.list_topics(topic, timeout=10).topics[topic].partitions)

    def _run(self, stop: threading.Event) -> None:
        try:
            self._write(stop)
        except BaseException as trouble:  # noqa: BLE001 - raised where the block ends
            self._trouble = trouble

    def _write(self, stop: threading.Event) -> None:
        open_rows, open_until = 0, 0.0
        while not stop.wait(_PAUSE_SECONDS):
            rows, commit = self._next()
            self._steady.write(rows, commit=commit)
            self._count(rows, commit=commit)
            if open_rows and time.monotonic() > open_until:
                self._end_slow(open_rows)
                open_rows = 0
            elif not open_rows and self._chance.random() < _LINGERS:
                open_rows, open_until = rows, time.monotonic() + self._chance.uniform(*_OPEN_SECONDS)
                self._slow.begin(rows)
        if open_rows:
            self._end_slow(open_rows)

    def _end_slow(self, rows: int) -> None:
        _, commit = self._next()
        self._slow.end(commit=commit)
        self._count(rows, commit=commit)
        self.lingering += 1

    def _next(self) -> tuple[int, bool]:
        return self._chance.randint(1, _MOST_ROWS), self._chance.random() < _COMMITS

    def _count(self, rows: int, *, commit: bool) -> None:
        if commit:
            self.committed += rows
        else:
            self.aborted += rows
