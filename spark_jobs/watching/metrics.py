"""Metrics of `watch`, as a file for the node exporter; no label ever holds an id or a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics import MetricWrapperBase

from spark_jobs.runtime.prometheus_file import write_prometheus_file
from spark_jobs.watching.frames.channel_status import ChannelStatus
from spark_jobs.watching.frames.per_minute import QUANTILES
from spark_jobs.watching.frames.step import Totals

REGISTRY = CollectorRegistry()

MESSAGES = Counter(
    "outbox_watch_messages",
    "Messages, by what became of them: halves, committed, rolled_back, delivered, forgotten",
    ["producer_group", "kind"],
    registry=REGISTRY,
)
CHECKS = Counter("outbox_watch_check_requests", "Check requests", ["producer_group"], registry=REGISTRY)
DISCARDED = Counter(
    "outbox_watch_discarded_messages",
    "Messages that went to the discard topic, by reason; UNDECIDED: they are parked",
    ["producer_group", "reason"],
    registry=REGISTRY,
)
WAITING = Gauge(
    "outbox_watch_waiting",
    "Messages that are UNDECIDED, or committed and UNDELIVERED, by age up to so many seconds; +Inf: older",
    ["producer_group", "state", "age"],
    registry=REGISTRY,
)
OLDEST_SECONDS = Gauge(
    "outbox_watch_oldest_seconds",
    "Age of the oldest message that waits so; absent if none does",
    ["producer_group", "state"],
    registry=REGISTRY,
)
LATENCY_SECONDS = Gauge(
    "outbox_watch_latency_seconds",
    "Quantiles of the last minutes: half_to_op, op_to_visible, half_to_visible",
    ["producer_group", "stage", "quantile"],
    registry=REGISTRY,
)
HELD_BACK = Gauge(
    "outbox_watch_held_back",
    "Offsets between last stable offset and high watermark; 0: none",
    ["topic", "partition"],
    registry=REGISTRY,
)
STANDING_SECONDS = Gauge(
    "outbox_watch_standing_seconds",
    "How long one open Kafka transaction has kept read_committed readers back; 0: not at all",
    ["topic", "partition"],
    registry=REGISTRY,
)
RELAY_LAG = Gauge(
    "outbox_watch_relay_lag", "Offsets of the half topic that the relay has not read", ["partition"], registry=REGISTRY
)
RELAY_LAG_SECONDS = Gauge(
    "outbox_watch_relay_lag_seconds",
    "Age of the oldest half in there that the job has read; 0: none",
    ["partition"],
    registry=REGISTRY,
)
BEHIND = Gauge("outbox_watch_behind", "Offsets that the job itself has not read", registry=REGISTRY)
COMPLETED_SECONDS = Gauge(
    "outbox_watch_completed_seconds", "When it last looked, seconds since 1970", registry=REGISTRY
)


def write_metrics(file: Path, look: ChannelStatus, totals: Totals, behind: int) -> None:
    """Write the file, so that readers see all of it or the one before.

    Args:
        file: The file.
        look: What was found.
        totals: Figures since the beginning.
        behind: Offsets that are not read.

    Raises:
        ConfigurationError: It cannot be written.
    """
    _forget()
    _show_totals(totals)
    _show_groups(look)
    _show_partitions(look)
    BEHIND.set(behind)
    COMPLETED_SECONDS.set(look.at_ms / 1000)
    write_prometheus_file(file, REGISTRY)


def _forget() -> None:
    """Remove figures of what no longer exists."""
    for metric in _labelled():
        metric.clear()


def _labelled() -> Iterator[MetricWrapperBase]:
    return (one for one in globals().values() if isinstance(one, MetricWrapperBase) and one._labelnames)  # noqa: SLF001 - it has no other name


def _show_totals(totals: Totals) -> None:
    for group, figures in totals.items():
        for name, count in figures.items():
            kind, _, reason = name.partition("/")
            if reason:
                DISCARDED.labels(group, reason).inc(count)
            elif kind == "checks":
                CHECKS.labels(group).inc(count)
            else:
                MESSAGES.labels(group, kind).inc(count)


def _show_groups(look: ChannelStatus) -> None:
    for one in look.waiting:
        group, age = one.group or "", "+Inf" if one.up_to_seconds is None else str(one.up_to_seconds)
        WAITING.labels(group, one.state, age).set(one.messages)
    for state in {one.state for one in look.waiting}:
        for name, oldest in look.oldest(state).items():
            OLDEST_SECONDS.labels(name or "", state).set(max((look.until_ms or look.at_ms) - oldest, 0) / 1000)
    for recent in look.recent:
        for stage, values in recent.quantiles.items():
            for quantile, value in zip(QUANTILES, values or (), strict=False):
                LATENCY_SECONDS.labels(recent.group or "", stage, str(quantile)).set(value / 1000)


def _show_partitions(look: ChannelStatus) -> None:
    for one in look.partitions:
        HELD_BACK.labels(one.topic, str(one.number)).set(one.held_back)
        STANDING_SECONDS.labels(one.topic, str(one.number)).set(one.standing_ms / 1000)
        if one.relay_lag is not None:
            RELAY_LAG.labels(str(one.number)).set(one.relay_lag)
            RELAY_LAG_SECONDS.labels(str(one.number)).set((one.relay_lag_ms or 0) / 1000)
