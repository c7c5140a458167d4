"""The CPU that the processes below this one have used, by what they are."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

RELAY, CONNECT, POSTGRES, BROKER = "relay", "connect", "Postgres", "broker"

_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
_FIELDS = slice(11, 15)
"""Of /proc/…/stat, after the name: user and system time, and those of the children that have ended."""


def cpu_us() -> Counter[str]:
    """Return the microseconds of each kind of process; a relay is what is none of the others."""
    spent: Counter[str] = Counter()
    for pid in _below(os.getpid()):
        with suppress(OSError):  # it has ended, and counts among its parent's
            spent[_kind(pid)] += _ticks(pid) * _TICK_US
    return spent


def spark_cpu_us() -> float:
    """Return the microseconds of this process, a driver of Spark, and of all below it that are no server."""
    return cpu_us()[RELAY] + time.process_time() * 1_000_000


def _below(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _below(child)


def _kind(pid: int) -> str:
    if Path(f"/proc/{pid}/comm").read_text().strip() == "postgres":
        return POSTGRES
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if b"kafka.Kafka" in words:
        return BROKER
    return CONNECT if any(b"ConnectDistributed" in word or b"ConnectStandalone" in word for word in words) else RELAY


def _ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_FIELDS]))
