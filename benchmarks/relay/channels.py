"""What several channels in one relay process cost: idle ones, and ones at work, beside a single channel."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.draining import PARTITIONS as REAL_PARTITIONS
from benchmarks.draining import Drain, drain
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.place import AS_DELIVERED
from benchmarks.relay.table_drain import fill_rows
from outbox._kafka.channel import create_channel
from outbox._postgres.message_table import MessageTable
from outbox.protocol.names import Channel
from stack import Stack
from tests.support.harness import Service, Site, wait_until
from tests.support.probes import free_port, metric

CHANNELS = 30
BUSY_CHANNELS = 4
PARTITIONS = 4
QUIET_SECONDS = 30.0
"""Time after the last channel is ready, until what its start took has gone."""
MEGABYTE = 1_000_000
_PERCENT = 100
_TOPIC = "real"
_LONGEST_SECONDS = 300.0

SMALL = Target("ours", "at most", 400)
IDLE = Target("ours", "at most", 20)
"""Percent of one core: 10 % of two."""


class Idle(NamedTuple):
    """What an idle process takes.

    Args:
        megabytes: Resident memory.
        percent: Processor time, percent of one core.
    """

    megabytes: float
    percent: float
    threads: float


def measure_channels(stack: Stack, rounds: int, seconds: float) -> list[Figure]:
    """Measure a relay of many idle channels."""
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


def measure_busy_channels(stack: Stack, rounds: int, messages: int) -> list[Figure]:
    """Measure how fast one relay process delivers the rows of several channels.

    Args:
        messages: How many committed rows wait, in all channels together.
    """
    variants = {number: partial(_drain, stack, number, messages) for number in (BUSY_CHANNELS, 1)}
    found = interleave({str(number): run for number, run in variants.items()}, rounds)
    several, one = ([run.per_second for run in found[str(number)]] for number in variants)
    words = f"drain of {messages:,} rows of message tables, 256 B, by one relay process of {BUSY_CHANNELS} channels"
    return [Figure("busy_channels_drain", words, "messages/s", "of one channel", several, one)]


def _drain(stack: Stack, channels: int, messages: int) -> Drain:
    """Drain the rows of some channels, each with a message table of its own, to one topic."""
    with ExitStack() as opened:
        sites = [opened.enter_context(Site(stack.bootstrap_servers, stack.postgres_url)) for _ in range(channels)]
        first = sites[0]
        first.create_topics(_TOPIC, partitions=REAL_PARTITIONS)
        for number, site in enumerate(sites):
            site.create(partitions=1)
            with site.connect() as connection:
                MessageTable(site.tables).create(connection)
            share = messages // channels
            fill_rows(site, first.topic(_TOPIC), share, after=number * share)
        lines = [
            f'[channels.{site.name}.tables.{site.name}]\ndsn = "{site.postgres_url}"\ntable_prefix = "{site.name}"'
            for site in sites
        ]
        return drain(first, _TOPIC, messages, _running(first, lines, AS_DELIVERED))


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
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        names = [f"{site.name}-{number}" for number in range(channels)]
        for name in names:
            create_channel(site.kafka(), Channel(name), partitions=PARTITIONS, replication=1)
        port = free_port()
        with _running(site, [f"[channels.{name}]" for name in names], {"OUTBOX_HTTP_PORT": str(port)}) as relay:
            wait_until(lambda: metric(port, "outbox_ready") == channels, _LONGEST_SECONDS, site.logs)
            yield relay


@contextmanager
def _running(site: Site, channels: Sequence[str], extra: Mapping[str, str | None]) -> Iterator[Service]:
    """Run a relay whose configuration file has these lines of channels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "relay.toml"
        lines = [f'bootstrap_servers = "{site.bootstrap_servers}"', 'profile = "development"']
        file.write_text("\n".join([*lines, *channels]))
        unset = dict.fromkeys(name for name in site.environment() if name.startswith("OUTBOX_"))
        relay = site.relay(extra={**unset, **extra, "OUTBOX_CONFIG": str(file)})
        try:
            yield relay
        finally:
            relay.terminate(60)


def _status(service: Service, field: str) -> int:
    """Return a number of /proc/PID/status."""
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def _processor_seconds(service: Service) -> float:
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
