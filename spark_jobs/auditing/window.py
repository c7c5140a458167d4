"""The window of an audit, and its spans of offsets. Pure.

Times only choose the offsets. The spans are what is audited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from outbox.errors import ConfigurationError
from outbox.protocol.checkpoint import HalfCheckpoint
from spark_jobs.runtime.spans import Checkpoint, Span, Spans

PERIODS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
"""What `--last` may name."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Window:
    """Halves whose append time is in [start, end), both ms since 1970; `grace` is in ms.

    Of table mode, messages whose local transaction began in it, by the database's clock.
    """

    start: int
    end: int
    grace: int

    @property
    def name(self) -> str:
        """For folders: `20261122T050000Z-20261122T060000Z`."""
        return f"{_compact(self.start)}-{_compact(self.end)}"

    def check_closed(self, now: int) -> None:
        """See that the window is closed: its last message has had `grace` ms to be delivered."""
        if self.start >= self.end:
            raise ConfigurationError(
                f"The window is empty: {text_of(self.start)} is not before {text_of(self.end)}. Choose a later end."
            )
        if self.end + self.grace >= now:
            raise ConfigurationError(
                f"The window is not closed: it ends {text_of(self.end)}, and its messages have {self.grace / 1000:g} s "
                "to arrive. Choose an earlier end, or a shorter grace."
            )


def last_window(period: str, now: int, grace: int) -> Window:
    """Return the last hour or day, by the clock of UTC, that is closed.

    Args:
        period: `hour` or `day`.
        now: ms since 1970.
        grace: ms.
    """
    length = PERIODS[period] // timedelta(milliseconds=1)
    end = (now - grace - 1) // length * length
    return Window(end - length, end, grace)


def parse_time(text: str) -> int:
    """Return a time as ms since 1970, from ISO 8601 (UTC if it names no zone) or from ms since 1970."""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is no time. Write it as 2026-11-22T05:00:00Z, or as milliseconds since 1970."
        ) from None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def text_of(time: int) -> str:
    """Return a time in ms since 1970 for people, in UTC."""
    return (_EPOCH + timedelta(milliseconds=time)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _compact(time: int) -> str:
    text = f"{_EPOCH + timedelta(milliseconds=time):%Y%m%dT%H%M%S}"
    return f"{text}Z" if time % 1000 == 0 else f"{text}.{time % 1000:03}Z"


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far a message table was delivered, before the ends of the real topics were taken."""

    source: str  # its name in the relay's settings; empty: no relay has delivered from it
    incarnation: str  # of its progress
    delivered: int  # number of the last batch that was known to be delivered


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything of Kafka that an audit reads.

    Args:
        halves: The window itself, by half partition.
        half_ends: Ends of the half partitions, taken after those of the real topics; no real record that is read
            can come from beyond.
        ops: Spans of the op topic, by partition.
        checkpoints: The relay's, by half partition.
        incomplete: Why a topic could not be read as it should, by topic.
        shortened: Real topics that begin inside the window, and where: retention by age explains that, and so does a
            deletion by hand. A message that is absent there is not proven to be lost.
        tables: The progress of message tables, by database.
    """

    channel: str
    half_topic_id: str
    window: Window
    halves: Mapping[int, Span]
    half_ends: Mapping[int, int] = field(default_factory=dict)
    ops: Mapping[int, Span] = field(default_factory=dict)
    verdicts: Mapping[int, Span] = field(default_factory=dict)
    discards: Mapping[int, Span] = field(default_factory=dict)
    reals: Spans = field(default_factory=dict)
    checkpoints: Mapping[int, Checkpoint] = field(default_factory=dict)
    incomplete: Mapping[str, str] = field(default_factory=dict)
    shortened: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TableProgress] = field(default_factory=dict)

    def unsettled(self) -> dict[int, tuple[range, ...]]:
        """Offsets of the window that the relay had not settled, by half partition, as runs."""
        return {partition: self._unsettled(partition, span) for partition, span in self.halves.items()}

    def _unsettled(self, partition: int, span: Span) -> tuple[range, ...]:
        committed = self.checkpoints.get(partition, Checkpoint(0, ""))
        found = committed.parse(self.half_topic_id, partition) or HalfCheckpoint(committed.offset, committed.offset)
        runs = (*found.unsettled, range(found.head, max(span[1], found.head)))
        cut = (range(max(run.start, span[0]), min(run.stop, span[1])) for run in runs)
        return tuple(run for run in cut if run)
