"""What a relay of many idle channels takes: memory, processor time and threads, beside one of a single channel."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Figure, Target
from outbox._kafka.channel import create_channel
from outbox.protocol.names import Channel
from stack import Stack
from tests.support.harness import Service, Site, wait_until
from tests.support.probes import free_port, metric

CHANNELS = 30
PARTITIONS = 4
QUIET_SECONDS = 30.0
"""Time after the last channel is ready, until what its start took has gone."""
MEGABYTE = 1_000_000
_PERCENT = 100
_LONGEST_SECONDS = 300.0

SMALL = Target("ours", "at most", 400)
IDLE = Target("ours", "at most", 20)
"""Percent of one core: 10 % of two."""


class Idle(NamedTuple):
    """What an idle process takes.

    Args:
        megabytes: Resident memory.
        percent: Processor time, percent of one core.
        threads: How many it has.
    """

    megabytes: float
    percent: float
    threads: float


def measure_channels(stack: Stack, rounds: int, seconds: float) -> list[Figure]:
    """Measure a relay of many idle channels.

    Args:
        stack: Servers.
        rounds: How often both run, in turn.
        seconds: How long its processor time is measured each time.
    """
    found = [(_idle(stack, CHANNELS, seconds), _idle(stack, 1, seconds)) for _ in range(rounds)]
    words = f"a relay of {CHANNELS} idle channels of {PARTITIONS} half partitions"
    fields = {"megabytes": ("MB", "resident memory of", SMALL), "percent": ("%", "percent of a core of", IDLE)}
    fields["threads"] = ("threads", "threads of", None)  # type: ignore[assignment]  # nothing was promised
    return [
        Figure(
            f"relay_{CHANNELS}_channels_{field}",
            f"{title} {words}",
            unit,
            "a relay of one",
            [getattr(ours, field) for ours, _ in found],
            [getattr(one, field) for _, one in found],
            target,
        )
        for field, (unit, title, target) in fields.items()
    ]


def _idle(stack: Stack, channels: int, seconds: float) -> Idle:
    with _relay(stack, channels) as relay:
        time.sleep(QUIET_SECONDS)
        began, at = _processor_seconds(relay), time.monotonic()
        time.sleep(seconds)
        percent = _PERCENT * (_processor_seconds(relay) - began) / (time.monotonic() - at)
        return Idle(_status(relay, "VmRSS") * 1024 / MEGABYTE, percent, _status(relay, "Threads"))


@contextmanager
def _relay(stack: Stack, channels: int) -> Iterator[Service]:
    """Run a relay of a number of new channels, and wait until it is ready for all of them."""
    with Site(stack.bootstrap_servers, stack.postgres_url) as site, tempfile.TemporaryDirectory() as folder:
        names = [f"{site.name}-{number}" for number in range(channels)]
        for name in names:
            create_channel(site.kafka(), Channel(name), partitions=PARTITIONS, replication=1)
        file, port = Path(folder) / "relay.toml", free_port()
        lines = [f'bootstrap_servers = "{stack.bootstrap_servers}"', 'profile = "development"']
        file.write_text("\n".join([*lines, *(f"[channels.{name}]" for name in names)]))
        unset = dict.fromkeys(name for name in site.environment() if name.startswith("OUTBOX_"))
        relay = site.relay(extra={**unset, "OUTBOX_CONFIG": str(file), "OUTBOX_HTTP_PORT": str(port)})
        wait_until(lambda: metric(port, "outbox_relay_ready") == channels, _LONGEST_SECONDS, site.logs)
        yield relay
        relay.terminate(60)


def _status(service: Service, field: str) -> int:
    """Return a number of /proc/PID/status."""
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def _processor_seconds(service: Service) -> float:
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
