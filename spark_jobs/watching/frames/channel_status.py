"""What one look at a channel has found: what waits, recent figures, partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from outbox.protocol.discard import DiscardReason
from spark_jobs.watching.frames.backlog import Waiting
from spark_jobs.watching.frames.partitions import Partition
from spark_jobs.watching.frames.per_minute import LATENCIES, merged, with_quantiles


@dataclass(frozen=True, slots=True)
class Recent:
    """Figures of a producer group over the last minutes.

    Args:
        group: Producer group; None for halves that cannot be read.
        halves: Halves.
        checks: Check requests.
        discarded: Discarded messages by reason.
        quantiles: By latency, its `QUANTILES` in ms; None if nothing was measured.
    """

    group: str | None
    halves: int = 0
    checks: int = 0
    discarded: Mapping[str, int] = field(default_factory=dict)
    quantiles: Mapping[str, Sequence[int] | None] = field(default_factory=dict)

    @property
    def undeliverable(self) -> dict[str, int]:
        """What was discarded for good, until an operator decides: parked messages may still be decided."""
        return {reason: count for reason, count in self.discarded.items() if reason != DiscardReason.UNDECIDED}


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """A look.

    Args:
        at_ms: When, ms since 1970.
        waiting: What waits.
        recent: Figures of the last minutes, by producer group.
        partitions: The partitions of all topics.
        until_ms: All that was written by then is read, ms since 1970: so old is what waits. None while the job is
            behind: what waits is unknown.
    """

    at_ms: int
    waiting: Sequence[Waiting] = ()
    recent: Sequence[Recent] = ()
    partitions: Sequence[Partition] = ()
    until_ms: int | None = None

    def oldest(self, state: str) -> dict[str | None, int]:
        """Append time (ms since 1970) of the oldest half that waits so, by producer group."""
        found: dict[str | None, int] = {}
        for one in self.waiting:
            if one.state == state:
                found[one.group] = min(one.oldest_ms, found.get(one.group, one.oldest_ms))
        return found

    def hanging(self) -> Iterator[Partition]:
        """Partitions where an open transaction keeps records from readers."""
        return (partition for partition in self.partitions if partition.standing_ms)


def recent_figures(rows: DataFrame) -> list[Recent]:
    """Rows of minutes, as figures of their producer groups."""
    quantiles = [f"{name}_ms" for name in LATENCIES]
    figures = with_quantiles(merged(rows, ["producer_group"]))
    found = figures.select("producer_group", "halves", "checks", "discarded", *quantiles).collect()
    return [
        Recent(
            row.producer_group, row.halves, row.checks, row.discarded, {name: row[f"{name}_ms"] for name in LATENCIES}
        )
        for row in found
    ]
