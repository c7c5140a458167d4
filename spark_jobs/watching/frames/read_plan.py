"""Which offsets the next batch reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.protocol.names import Place
from spark_jobs.runtime.spans import Span


def plan(position: Mapping[Place, int], ends: Mapping[Place, int], most: int) -> dict[Place, Span]:
    """Spans from where the last batch ended, of `most` offsets together at most; partitions with nothing new have none.

    Each partition gets its share of what it has, and one offset at least, so that all topics come to the same time
    together.

    Args:
        position: First offset that is not read; a partition that is new is read from 0.
        ends: First offset that cannot be read yet.
        most: Offsets, markers of Kafka transactions among them.
    """
    waiting = {place: end - position.get(place, 0) for place, end in ends.items() if end > position.get(place, 0)}
    total = sum(waiting.values())
    spans = {}
    for place, offsets in waiting.items():
        share = offsets if total <= most else max(offsets * most // total, 1)
        start = position.get(place, 0)
        spans[place] = (start, start + share)
    return spans


def advanced(position: Mapping[Place, int], spans: Mapping[Place, Span]) -> dict[Place, int]:
    """Return the position once these spans are read."""
    return {**position, **{place: end for place, (_, end) in spans.items()}}
