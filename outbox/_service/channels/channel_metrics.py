"""Metrics whose first label is the channel that the thread works for.

They are used as if they had no such label: `labels()` and `remove()` take the other labels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from outbox._service.channels.channel_context import current_channel
from outbox._service.health import Health, why_not_ready

CHANNEL = "channel"
"""The label; each of these metrics names it first."""


class _OfChannel(MetricWrapperBase):
    def labels(self, *labelvalues: Any, **labelkwargs: Any) -> Self:
        """Return the series of this channel with these values of the other labels."""
        return super().labels(current_channel(), *labelvalues, **labelkwargs)

    def remove(self, *labelvalues: Any) -> None:
        """Remove the series of this channel with these values of the other labels."""
        super().remove(current_channel(), *labelvalues)

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        """Remove all series of this channel with these labels."""
        super().remove_by_labels({CHANNEL: current_channel(), **labels})

    def of_channel(self) -> list[dict[str, str]]:
        """Return the labels of all series of this channel."""
        samples = (sample for metric in self.collect() for sample in metric.samples)
        return [sample.labels for sample in samples if sample.labels[CHANNEL] == current_channel()]


class ChannelCounter(_OfChannel, Counter):
    """A counter with a series for each channel."""


class ChannelGauge(_OfChannel, Gauge):
    """A gauge with a series for each channel."""


class ChannelHistogram(_OfChannel, Histogram):
    """A histogram with a series for each channel."""

    def observe_each(self, amounts: Mapping[float, int]) -> None:
        """Observe amounts so many times each, with one step for each bucket.

        Args:
            amounts: How many times, by amount.
        """
        self._sum.inc(sum(amount * times for amount, times in amounts.items()))
        buckets = defaultdict[int, int](int)
        for amount, times in amounts.items():
            buckets[bisect_left(self._upper_bounds, amount)] += times
        for bucket, times in buckets.items():
            self._buckets[bucket].inc(times)


def ready_gauge(registry: CollectorRegistry, service: str) -> ChannelGauge:
    """Return the metric that shows whether a service is ready for a channel.

    Args:
        registry: Of the service.
        service: relay or checker.
    """
    return ChannelGauge(
        f"outbox_{service}_ready",
        "Whether this process is ready for the channel: 1 or 0; /readyz has the reason",
        [CHANNEL],
        registry=registry,
    )


def restarts_counter(registry: CollectorRegistry, service: str) -> ChannelCounter:
    """Return the metric that counts how often a channel was started again after it stopped.

    Args:
        registry: Of the service.
        service: relay or checker.
    """
    return ChannelCounter(
        f"outbox_{service}_channel_restarts",
        "Times that a channel stopped because of an error and is started again, in a process of several channels",
        [CHANNEL],
        registry=registry,
    )


def show_ready(gauge: ChannelGauge, health: Health) -> None:
    """Let the metric of this thread's channel show its state at each scrape."""
    gauge.labels().set_function(lambda: why_not_ready(health) is None)
