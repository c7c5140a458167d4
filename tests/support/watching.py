"""Histories of messages as `watch` reads them: cut into batches at will, counted and kept as the job does it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Row

from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from spark_jobs.watching.frames.backlog import Waiting, oldest_unread, waiting
from spark_jobs.watching.frames.events import (
    EVENTS,
    check_events,
    discard_events,
    half_events,
    op_events,
    real_events,
)
from spark_jobs.watching.frames.messages import Read, kept, messages, together
from spark_jobs.watching.frames.per_minute import MINUTES, merged, minutes, totals_of
from tests.support.proving import BEGIN, START, TOPIC_ID, History, Record, Told, frame
from tests.support.spark import session

DAY_MS = 86_400_000
LISTS = ("halves", "ops", "reals", "discards", "checks")
"""The topics of a channel, as lists of a history."""


@dataclass
class Channel(History):
    """A history with check requests."""

    checks: list[Record] = field(default_factory=list)

    def ask(self, told: Told, check: int = 1) -> None:
        """The relay asks about a transaction."""
        request = CheckRequest(
            told.id, told.control[0].group, Truth.ROW, TOPIC_ID, 0, told.positions, told.first, told.last, check
        )
        time = told.halves[-1].time + timedelta(seconds=6 * check)
        group = request.group.encode()
        self.checks.append(Record("outbox.check", 0, len(self.checks), group, request.encode(), [], time))

    def roll_back_without_offsets(self, told: Told) -> None:
        """An op marker of one whose halves its producer saw no acknowledgement of."""
        entry = OpEntry(OpKind.ROLLBACK, told.id, TOPIC_ID, 0, Positions(()), NO_OFFSET, NO_OFFSET)
        value, headers = encode_op([entry], OpSource.PRODUCER)
        self.ops.append(Record("outbox.op", 0, len(self.ops), None, value, headers, told.halves[-1].time))

    @property
    def lengths(self) -> dict[str, int]:
        """How many records each topic has."""
        return {name: len(getattr(self, name)) for name in LISTS}


class Job:
    """A job on a channel; the test says how far each batch goes.

    Args:
        channel: The channel.
        topics: The real topics that are watched.
        begin: The half offset where it began.
        head: First half offset that the relay has not read; None: it has no checkpoint.
    """

    def __init__(
        self,
        channel: Channel,
        topics: Collection[str] = ("orders", "stock"),
        begin: int = START,
        head: int | None = None,
    ) -> None:
        self.channel = channel
        self.topics = topics
        self.begin = begin
        self.head = head
        self.unread: dict[int, int] = {}
        self.known: list[Row] = []
        self.rows: list[Row] = []
        self.waiting: list[Waiting] = []
        self._position = dict.fromkeys(LISTS, 0)

    def batch(
        self, to: Mapping[str, int] | None = None, *, now: datetime | None = BEGIN, forget_ms: int = DAY_MS
    ) -> None:
        """One batch.

        Args:
            to: Where it ends, by topic; without a topic at its end.
            now: The time; None: the job is behind.
            forget_ms: As the setting.
        """
        ends = {**self.channel.lengths, **(to or {})}
        new = {name: getattr(self.channel, name)[self._position[name] : end] for name, end in ends.items()}
        self._position = ends
        known = session().createDataFrame(self.known, EVENTS)
        events = together(known, read(new)).persist()
        newest = max((record.time for record in self.channel.halves[: ends["halves"]]), default=BEGIN)
        half_ends, heads = {0: self.begin + ends["halves"]}, {} if self.head is None else {0: self.head}
        written = {0: self.begin + len(self.channel.halves)}
        reading = Read(
            half_ends, written, _ms(newest), None if now is None else _ms(now), forget_ms, self.topics, heads
        )
        told = messages(events).persist()
        self.rows += minutes(events, told, reading).collect()
        self.known = kept(events, told, reading).collect()
        self.waiting = waiting(told, reading)
        self.unread = oldest_unread(events, reading)
        events.unpersist()
        told.unpersist()

    def frame(self) -> DataFrame:
        """The rows of all batches."""
        return session().createDataFrame(self.rows, MINUTES)

    def totals(self) -> dict[str, dict[str, int]]:
        """What they add up to, by producer group; what is 0 is left out."""
        found = totals_of(self.frame())
        return {group: {name: count for name, count in one.items() if count} for group, one in found.items()}

    def minutes(self) -> list[dict[str, Any]]:
        """The figures by minute, group and topic, without sketches."""
        rows = merged(self.frame()).drop("half_to_op", "op_to_visible", "half_to_visible").collect()
        return sorted((row.asDict() for row in rows), key=str)

    def open(self) -> set[str]:
        """Transactions that are kept."""
        return {row.transaction_id for row in self.known}


def read(new: Mapping[str, Sequence[Record]]) -> DataFrame:
    """Records as events."""
    frames = (
        half_events(frame(new["halves"])),
        op_events(frame(new["ops"]), TOPIC_ID, 1),
        check_events(frame(new["checks"])),
        discard_events(frame(new["discards"]), TOPIC_ID),
        real_events(frame(new["reals"]), 1),
    )
    return reduce(DataFrame.unionByName, frames)


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
