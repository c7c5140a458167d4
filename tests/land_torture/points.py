"""Where a job is killed: at failpoints, at the sight of a file, at the end of its Java process, or at any moment."""

import enum
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


class Kind(enum.Enum):
    FAILPOINT = enum.auto()
    """The process kills itself there."""
    SIGHT = enum.auto()
    """It is killed as soon as a file or folder is seen that was not there before."""
    RUNNING = enum.auto()
    """At any moment, once something was landed."""
    STARTING = enum.auto()
    """At any moment from the start of the process on."""
    WORKER = enum.auto()
    """A Python worker of Spark kills itself there."""
    JAVA = enum.auto()
    """Its Java process is killed at any moment, once something was landed."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where to kill."""

    name: str
    kind: Kind
    place: str = ""  # the failpoint, or the folder to look into, below the folder of the job
    pattern: str = ""

    def names(self, folder: Path) -> set[str]:
        """What is there to be seen, below the folder of the job."""
        try:
            return {path.name for path in (folder / self.place).iterdir() if re.fullmatch(self.pattern, path.name)}
        except FileNotFoundError:
            return set()


CHECKPOINT = "checkpoint"
COMMITS = f"{CHECKPOINT}/commits"
TABLE = "table"

LANDED = Point("batch committed by Spark", Kind.SIGHT, COMMITS, r"\d+")

_ALWAYS = (
    Point("at any moment", Kind.RUNNING),
    Point("while it starts", Kind.STARTING),
    Point("its Java process", Kind.JAVA),
    Point("batch planned", Kind.SIGHT, f"{CHECKPOINT}/offsets", r"\d+"),
    LANDED,
)
_COMPLETED = Point("land.batch_completed", Kind.FAILPOINT, "land.batch_completed")
POINTS = {
    "delta": (
        *_ALWAYS,
        _COMPLETED,
        Point("land.records_written", Kind.FAILPOINT, "land.records_written"),
        Point("land.state_merged", Kind.FAILPOINT, "land.state_merged"),
        Point("Delta transaction committed", Kind.SIGHT, f"{TABLE}/records/_delta_log", r"\d+\.json"),
    ),
    "naive": (*_ALWAYS, _COMPLETED),
    "outbox": (
        *_ALWAYS,
        *(Point(name, Kind.WORKER, name) for name in ("sink.staged", "sink.moved", "sink.committed")),
    ),
    "kafka": _ALWAYS,
}
"""By sink."""


def in_turn(points: Sequence[Point], chance: random.Random) -> Iterator[Point]:
    """All points, in another order each time, without end."""
    while True:
        yield from chance.sample(points, len(points))
