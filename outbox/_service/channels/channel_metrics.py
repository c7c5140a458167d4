"""Metrics whose first label is the channel that the thread works for.

They are used as if they had no such label: `labels()` and `remove()` take the other labels.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Self, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from outbox._service.channels.channel_context import current_channel
from outbox._service.health import Health, why_not_ready

CHANNEL = "channel"
"""The label; each of these metrics names it first."""

UNREACHABLE = "unreachable"
"""Instead of a rule of the contract: Kafka did not answer the last look, or when the service was to begin."""


class _OfChannel(MetricWrapperBase):
    def labels(self, *labelvalues: Any, **labelkwargs: Any) -> Self:
        """Return the series of this channel with these values of the other labels."""
        return super().labels(current_channel(), *labelvalues, **labelkwargs)

    def remove(self, *labelvalues: Any) -> None:
        """Remove the series of this channel with these values of the other labels."""
        super().remove(current_channel(), *labelvalues)

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        super().remove_by_labels({CHANNEL: current_channel(), **labels})

    def of_channel(self) -> list[dict[str, str]]:
        samples = (sample for metric in self.collect() for sample in metric.samples)
        return [sample.labels for sample in samples if sample.labels[CHANNEL] == current_channel()]


M = TypeVar("M", bound=_OfChannel)


class ChannelCounter(_OfChannel, Counter):
    """A counter with a series for each channel."""


class ChannelGauge(_OfChannel, Gauge):
    """A gauge with a series for each channel."""

    def show_only(self, values: Mapping[str, float]) -> None:
        """Have a series for each of these values of its other label, and no further ones."""
        for _, shown in [labels.values() for labels in self.of_channel()]:
            if shown not in values:
                self.remove(shown)
        for label, value in values.items():
            self.labels(label).set(value)


class ChannelHistogram(_OfChannel, Histogram):
    """A histogram with a series for each channel."""

    def observe_since(self, times: Iterable[int], now: int) -> None:
        """Observe the seconds since some times (µs), with one step for each bucket; what is to come counts as now."""
        ordered = sorted(times)
        past = bisect_right(ordered, now)
        self._sum.inc((past * now - sum(ordered[:past])) / 1_000_000)
        newer = len(ordered)
        for bucket, bound in zip(self._buckets, self._upper_bounds, strict=True):
            older = bisect_left(ordered, now - bound * 1_000_000)
            bucket.inc(newer - older)
            newer = older


class MetricTable:
    """The metrics of a service, a row each: its name, what it is, and its labels beside the channel.

    A label has the values that it may have; none, if they are found only while the service runs.
    """

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        self._rows: list[tuple[_OfChannel, dict[str, tuple[str, ...]]]] = []
        of_program = {"program": (service,)}
        self._ready = self.gauge(
            "outbox_ready",
            "Whether this process is ready for the channel: 1 or 0; /readyz has the reason",
            **of_program,
        )
        self._restarts = self.counter(
            "outbox_channel_restarts",
            "Times that a channel stopped because of an error (alone in its process: Kafka's silence) and began again",
            **of_program,
        )
        self.contract = self.gauge(
            "outbox_contract_problems",
            "Rules that topics of the channel, or of Kafka itself, break now; unreachable: Kafka did not answer",
            rule=(),
        )

    def counter(self, name: str, text: str, **labels: Iterable[str]) -> ChannelCounter:
        """Add a counter, whose name goes on with `_total`."""
        return self._add(ChannelCounter(name, text, (CHANNEL, *labels), registry=self.registry), labels)

    def gauge(self, name: str, text: str, **labels: Iterable[str]) -> ChannelGauge:
        return self._add(ChannelGauge(name, text, (CHANNEL, *labels), registry=self.registry), labels)

    def histogram(self, name: str, text: str, buckets: Sequence[float], **labels: Iterable[str]) -> ChannelHistogram:
        """Add a histogram with these upper bounds."""
        made = ChannelHistogram(name, text, (CHANNEL, *labels), registry=self.registry, buckets=buckets)
        return self._add(made, labels)

    def show(self, **known: str) -> None:
        """Show counters and histograms with just the labels `known` at 0: a rate then includes the first event."""
        for metric, labels in self._rows:
            unknown = {label for label, values in labels.items() if not values}
            if unknown == known.keys() and not isinstance(metric, Gauge):
                for values in product(*({**labels, **{label: (known[label],) for label in known}}.values())):
                    metric.labels(*values)

    def restarted(self, times: int = 1) -> None:
        """Count that this thread's channel is started again."""
        self._restarts.labels(self._service).inc(times)

    def of(self, label: str) -> list[_OfChannel]:
        return [metric for metric, labels in self._rows if label in labels]

    def metrics(self) -> list[MetricWrapperBase]:
        return [metric for metric, _ in self._rows]

    def show_ready(self, health: Health) -> None:
        """Let a gauge show the state of this thread's channel at each scrape."""
        self._ready.labels(self._service).set_function(lambda: why_not_ready(health) is None)

    def _add(self, metric: M, labels: Mapping[str, Iterable[str]]) -> M:
        self._rows.append((metric, {label: tuple(values) for label, values in labels.items()}))
        return metric
