"""What a read_committed reader in a process of its own saw, and when: the clock is the machine's, which all share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.support.harness import Site, wait_until


class Arrival(NamedTuple):
    """One record, as the reader saw it.

    Args:
        at_ns: When it was there, ns of the monotonic clock.
    """

    key: str
    at_ns: int
    partition: int
    offset: int


class Reading:
    """What a reader has written down so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._arrivals: list[Arrival] = []

    def began(self) -> bool:
        """Whether from now on nothing is missed."""
        return self._path.exists() and "\n\n" in "\n" + self._path.read_text()

    def arrivals(self) -> list[Arrival]:
        """All that came since the reader began, in their order."""
        with self._path.open() as file:
            file.seek(self._place)
            whole = file.read().rpartition("\n")[0]
        self._arrivals += [_arrival(line) for line in whole.split("\n") if line]
        self._place += len(whole.encode())
        return self._arrivals


@contextmanager
def start_reader(site: Site, topic: str) -> Iterator[Reading]:
    """Read what comes to a topic from now on, during the block.

    Args:
        topic: Full name of the topic.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "seen"
        command = [sys.executable, "-m", "benchmarks.relay.reader", topic, str(path)]
        with subprocess.Popen(command, env=site.environment()) as process:
            try:
                reading = Reading(path)
                wait_until(reading.began)
                yield reading
            finally:
                process.kill()


def first_times(arrivals: list[Arrival]) -> dict[str, int]:
    """When each key was there for the first time, ns."""
    found: dict[str, int] = {}
    for arrival in arrivals:
        found.setdefault(arrival.key, arrival.at_ns)
    return found


def first_new(arrivals: list[Arrival], before: Mapping[int, int]) -> Arrival | None:
    """Return the first record behind some offsets that is no repetition of one before them; None if there is none.

    Args:
        before: An offset of each partition.
    """
    known = {arrival.key for arrival in arrivals if arrival.offset < before[arrival.partition]}
    new = (each for each in arrivals if each.offset >= before[each.partition] and each.key not in known)
    return min(new, key=lambda arrival: arrival.at_ns, default=None)


def _arrival(line: str) -> Arrival:
    key, at, partition, offset = line.split()
    return Arrival(key, int(at), int(partition), int(offset))
