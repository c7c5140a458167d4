"""Kafka partitions as a look finds them: open transactions that hold readers back, and how far the relay is. Pure.

With `read_committed` a reader ends at the last stable offset: what is behind it, up to the high watermark, waits for
the end of a Kafka transaction. Spark's own lag metric ends there too, and is 0 for a partition that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from outbox.protocol.names import Place


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A last stable offset that is below the high watermark.

    Args:
        offset: The offset, where a Kafka transaction begins that is open.
        since_ms: When its transaction began, else when it was first seen there, ms since 1970.
        holder: Whose transaction it is: a transactional id, else a producer id; empty if that is not known.
    """

    offset: int
    since_ms: int
    holder: str = ""


class Holder(NamedTuple):
    """Who holds a partition up.

    Args:
        name: A transactional id, `shop-7 (PREPARE_COMMIT)` if the end of its transaction is written down already and
            only its markers are missing; `producer id 7` if this client sees no transaction of it.
        since_ms: When the transaction began, ms since 1970; None if that is not known.
    """

    name: str
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition.

    Args:
        topic: Topic.
        number: Number.
        end: High watermark.
        stable: Last stable offset.
        standing_ms: How long it has stood below the high watermark, ms; 0 if it does not.
        holder: Whose transaction it is; empty if there is none, or if that is not known.
        relay_lag: Of a half partition, the offsets that the relay has not read; None of another one.
        relay_lag_ms: Age of the oldest half in there, ms; 0 if there is none.
    """

    topic: str
    number: int
    end: int
    stable: int
    standing_ms: int
    holder: str = ""
    relay_lag: int | None = None
    relay_lag_ms: int | None = None

    @property
    def held_back(self) -> int:
        """Offsets that an open transaction keeps from readers."""
        return self.end - self.stable


PARTITIONS = (
    "at timestamp, topic string, partition int, end bigint, stable bigint, standing_ms bigint, holder string, "
    "relay_lag bigint, relay_lag_ms bigint"
)
"""What each look finds, as rows."""


def standing(
    ends: Mapping[Place, int], stable: Mapping[Place, int], before: Mapping[Place, OpenTransaction], now_ms: int
) -> dict[Place, OpenTransaction]:
    """Where the last stable offset is below the high watermark, and since when it has not moved.

    Args:
        ends: High watermarks.
        stable: Last stable offsets, asked for after them: what was written in between seems to hang nowhere.
        before: What the look before found.
        now_ms: The time, ms since 1970.
    """
    found = {}
    for place, offset in stable.items():
        if offset < ends[place]:
            known = before.get(place)
            found[place] = known if known is not None and known.offset == offset else OpenTransaction(offset, now_ms)
    return found


def held(found: Mapping[Place, OpenTransaction], holders: Mapping[Place, Holder]) -> dict[Place, OpenTransaction]:
    """Offsets, with what was found out about those who hold them."""
    known = {
        place: replace(found[place], holder=one.name, since_ms=one.since_ms or found[place].since_ms)
        for place, one in holders.items()
    }
    return {**found, **known}


def partition_rows(found: Iterable[Partition], at_ms: int) -> list[tuple[object, ...]]:
    """Rows of `PARTITIONS`."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return [
        (at, one.topic, one.number, one.end, one.stable, one.standing_ms, one.holder, one.relay_lag, one.relay_lag_ms)
        for one in found
    ]
