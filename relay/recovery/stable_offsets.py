"""Real topics that an open transaction keeps back from read_committed readers.

A reader sees nothing beyond the last stable offset, so any transaction that hangs blocks the topic.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import end_offsets
from outbox._kafka.topic_cache import TopicCache
from outbox._service.periodic import Periodic
from relay import metrics

LOOK_SECONDS = 5.0

Offsets = Mapping[str, tuple[int, ...]]
"""An offset for each partition of some topics."""


class StableOffsets:
    """What was seen of real topics. Pure."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], tuple[int, float]] = {}

    def saw(self, ends: Offsets, stable: Offsets, now: float) -> dict[str, float]:
        """Return for how many seconds one transaction has kept readers of each topic back.

        Args:
            stable: Last stable offsets, asked for after them: what was written in between is no backlog.
            now: Seconds of any clock that never goes back.
        """
        since = self._since
        self._since = {}
        found = defaultdict[str, float](float)
        for topic in stable.keys() & ends.keys():
            for number, (end, offset) in enumerate(zip(ends[topic], stable[topic], strict=True)):
                before, at = since.get((topic, number), (offset, now))
                at = at if before == offset and end > offset else now
                self._since[topic, number] = (offset, at)
                found[topic] = max(found[topic], now - at)
        return dict(found)


def watch_real_topics(admin: AdminClient, topics: TopicCache) -> Periodic:
    """Return what describes the topics of this relay again and again, for pre-flight and for metrics; not started yet.

    Pre-flight must not learn of missing replicas too late: a Kafka transaction that has written to a topic below
    `min.insync.replicas` cannot be ended until its replicas are back, and with it the half partition waits.
    """
    offsets = StableOffsets()
    told: set[str] = set()

    def look() -> None:
        describe(topics)
        partitions = topics.described()
        ends = end_offsets(admin, partitions)
        found = offsets.saw(ends, end_offsets(admin, partitions, stable=True), time.monotonic())
        for topic in told - found.keys():
            metrics.BLOCKED_SECONDS.remove(topic)
        for topic, seconds in found.items():
            metrics.BLOCKED_SECONDS.labels(topic).set(seconds)
        told.clear()
        told.update(found)

    return Periodic("real topics", look, LOOK_SECONDS)


def describe(topics: TopicCache) -> None:
    """Describe the real topics again, and export how many of their partitions are below `min.insync.replicas`."""
    described = topics.described()
    found = topics.describe_again(described)
    for name in described:
        topic = found.get(name)
        metrics.UNDER_MIN_ISR.labels(name).set(topic.under_min_isr if topic else 0)
