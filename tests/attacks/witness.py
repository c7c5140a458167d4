"""Publishes for the team that is attacked, and finds out what became of it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psycopg

from outbox import HalfOutbox, Message, Outbox
from outbox.testing import VisibleRecord
from tests.support.harness import doubled, publish_on
from tests.support.secured import SecuredSite

PAUSE_SECONDS = 0.1
KEYS = 3


class Witness:
    """Publishes numbered messages in half mode and in table mode, until it is stopped."""

    def __init__(self, site: SecuredSite, kafka: Mapping[str, str], dsn: str, service: str) -> None:
        self._dsn = dsn

        self._outboxes: dict[str, HalfOutbox | Outbox] = {
            site.topic("orders"): HalfOutbox(service, kafka, channel=site.name, tables=site.tables),
            site.topic("rows"): Outbox(service, channel=site.name, tables=site.tables),
        }
        self._eager = HalfOutbox(service, kafka, eager=True, channel=site.name, tables=site.tables)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=pair) for pair in self._outboxes.items()]
        self.committed: dict[tuple[str, bytes], float] = {}
        """When the message of a topic and value was committed, monotonic seconds."""
        self.refused = 0
        """Transactions that were rolled back because the server had no memory for a lock."""
        self.failures: list[Exception] = []

    def _run(self, topic: str, outbox: HalfOutbox | Outbox) -> None:
        number = 0
        try:
            with psycopg.connect(self._dsn) as connection:
                while not self._stop.wait(PAUSE_SECONDS):
                    number += 1
                    try:
                        publish_on(connection, outbox, Message(topic, str(number), f"key{number % KEYS}"))
                    except psycopg.errors.OutOfMemory:  # rolled back: somebody has taken all locks of the server
                        self.refused += 1
                        continue
                    self.committed[topic, str(number).encode()] = time.monotonic()
        except Exception as error:  # noqa: BLE001 - the test names it
            self.failures.append(error)

    def publish(self, value: str, meanwhile: Callable[[str], object], *, eager: bool = False) -> None:
        """Publish one more message in half mode, `eager` or not, of a value of its own; do something before COMMIT."""
        (topic, usual), *_ = self._outboxes.items()
        outbox = self._eager if eager else usual
        assert isinstance(outbox, HalfOutbox)
        with psycopg.connect(self._dsn) as connection:
            with outbox.transaction(connection) as transaction:
                receipt = transaction.publish(Message(topic, value, f"key of {value}"))
                meanwhile(receipt.transaction_id)
            self.committed[topic, value.encode()] = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[Witness]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self.end()
            for outbox in (*self._outboxes.values(), self._eager):
                outbox.close()

    def end(self) -> None:
        """Publish nothing more; the last COMMIT has returned."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wrong(self, found: list[VisibleRecord]) -> list[str]:
        """Return what is lost, doubled, out of order, or of nobody, among all records of the team's topics."""
        wrong = [f"{id_} is there twice" for id_ in doubled(found)]
        visible = {(record.topic, record.value or b"") for record in found}
        wrong += [f"{each} is lost" for each in self.committed.keys() - visible]
        wrong += [f"{each} is of nobody" for each in visible - self.committed.keys()]
        numbers: defaultdict[tuple[str, bytes | None], list[int]] = defaultdict(list)
        for record in sorted(record for record in found if (record.topic, record.value or b"") in self.committed):
            numbers[record.topic, record.key].append(int(record.value or b""))
        return wrong + [f"{key} is out of order" for key, some in numbers.items() if some != sorted(some)]

    def delays_ms(self, arrivals: list[tuple[float, VisibleRecord]], begin: float, end: float) -> list[float]:
        """Return how long messages of a span (monotonic seconds) took from COMMIT to a reader, ms, ascending."""
        return sorted(
            1e3 * (arrived - committed)
            for arrived, record in arrivals
            if begin <= (committed := self.committed.get((record.topic, record.value or b""), -1)) < end
        )
