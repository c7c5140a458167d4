"""The job `watch` on a Kafka that answers from memory: where it begins, and what it makes of the ends of partitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from outbox.protocol.names import Place
from spark_jobs.runtime.errors import LostRecordsError
from spark_jobs.runtime.kafka_offsets import Topic
from spark_jobs.watching.frames.partitions import Holder
from spark_jobs.watching.job import Watch
from spark_jobs.watching.settings import WatchSettings
from spark_jobs.watching.topics import WatchedTopics
from tests.support.spark import session

HALVES = ("outbox.half", 0)


class Live:
    """A channel without records but halves, of which one comes whenever somebody asks for offsets."""

    def __init__(self) -> None:
        self._halves = itertools.count(5)
        self.removed = 0

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """They exist."""
        return {name: Topic(name, f"id of {name}", 1) for name in names}

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """One half more than before."""
        return {place: next(self._halves) if place == HALVES else 0 for place in places}

    stable = ends

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """Behind what was removed."""
        return {place: self.removed if place == HALVES else 0 for place in places}

    def relay_heads(self, group: str, half: Topic) -> dict[int, int]:
        """No relay has been there."""
        del group, half
        return {}

    def holders(self, standing: Mapping[Place, int]) -> dict[Place, Holder]:
        """Nothing hangs."""
        del standing
        return {}


def job(kafka: Live, folder: Path, **given: Any) -> Watch:
    settings = WatchSettings(**{"bootstrap_servers": "kafka:9092", "output": str(folder / "figures"), **given})
    made = Watch(session(), settings, cast("WatchedTopics", kafka))
    made.prepare()
    return made


def test_a_job_begins_at_the_end_of_a_channel_that_never_stands_still(tmp_path: Path) -> None:
    kafka = Live()
    made = job(kafka, tmp_path)
    made.step(None)
    assert made.batches == 1
    kafka.removed = 1_000
    with pytest.raises(LostRecordsError, match=r"outbox\.half/0"):
        made.step(None)
