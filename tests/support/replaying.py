"""Replays in tests: a landed table, and runs over it in the session of the test process."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spark_jobs.replaying.job import Prepared, replay
from spark_jobs.replaying.settings import ReplaySettings
from tests.support.harness import Site
from tests.support.landing import Landing
from tests.support.spark import Record, session

NOW = datetime.now(UTC).replace(microsecond=0)
"""Topics take no timestamps that are far from now."""


def landed(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: Iterable[tuple[str, bytes | None]] = (),
    place: int = 0,
) -> Record:
    """A record as the relay has written it; its transaction is known by partition and offset."""
    outbox = [
        ("outbox-id", f"{transaction(partition, offset - place)}/{place}".encode()),
        ("outbox-service", b"shop"),
        ("outbox-origin", b"0/%d" % offset),
    ]
    time = NOW + timedelta(milliseconds=offset)
    return Record(offset, [*headers, *outbox], topic, partition, key, value, time)


def landed_row(topic: str, offset: int, row: int) -> Record:
    """A record of table mode as the relay has written it.

    Args:
        row: Id of the row of the message table.
    """
    id_ = f"{transaction(0, offset)}/{row}".encode()
    outbox = [("outbox-id", id_), ("outbox-service", b"shop"), ("outbox-origin", b"shop/%d" % row)]
    return Record(offset, outbox, topic)


def transaction(partition: int, offset: int) -> str:
    return f"0192f3a4-5b6c-7d8e-9f00-{partition:04x}{offset:08x}"


class Replaying:
    """A table that `land` has written, and replays from it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.landing = Landing(folder)
        self._batches = 0

    def land(self, *records: Record) -> None:
        self.landing.plan(self._batches, self._batches + 1)
        self.landing.land(self._batches, *records)
        self.landing.commit(self._batches)
        self._batches += 1

    def settings(self, **given: Any) -> ReplaySettings:
        wanted = {
            "bootstrap_servers": self.site.bootstrap_servers,
            "channel": self.site.name,
            "replay_id": "again",
            "table": str(self.landing.table),
        }
        return ReplaySettings(**{**wanted, **given})

    def run(self, **given: Any) -> Prepared:
        return replay(session(), self.settings(**given))
