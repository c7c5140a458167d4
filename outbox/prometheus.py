"""A recorder for Prometheus; needs the extra `metrics`."""

import weakref
from functools import partial
from typing import NamedTuple

from outbox._kafka.forks import ForkSafeLock
from outbox._postgres.optional_packages import extra
from outbox.listener import LocalTransactionState
from outbox.recorder import CommitOutcome

with extra("metrics", "outbox.prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds, up to the default `publish_timeout_seconds`."""


class _Metrics(NamedTuple):
    published: Counter
    ack_seconds: Histogram
    transactions: Counter
    ops_dropped: Counter
    checks: Counter
    table_unowned: Counter
    circuit_open: Gauge


_lock = ForkSafeLock()
_made: weakref.WeakKeyDictionary[CollectorRegistry, _Metrics] = weakref.WeakKeyDictionary()


def _metrics(registry: CollectorRegistry) -> _Metrics:
    """Return the metrics of a registry, created at the first call: a registry refuses a second metric of a name."""
    with _lock.free:
        if registry not in _made:
            counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
            histogram = partial(Histogram, registry=registry, buckets=_BUCKETS)
            unowned = "Looks, at most one a minute, that again found old rows in the message table, and no relay"
            acks = "Time from sending the halves of a transaction to their last acknowledgement"
            _made[registry] = _Metrics(
                counter("outbox_messages_published", "Messages that publish() accepted", ["service"]),
                histogram("outbox_half_ack_seconds", acks, ["service"]),
                counter("outbox_transactions", "Local transactions that ended, by outcome", ["service", "outcome"]),
                counter("outbox_ops_dropped", "Op markers that did not reach Kafka", ["service"]),
                counter("outbox_checks_answered", "Check requests answered, by state", ["service", "state"]),
                counter("outbox_table_unowned", unowned, ["service"]),
                gauge(
                    "outbox_circuit_open", "1 while nothing is sent because Kafka does not answer, else 0", ["service"]
                ),
            )
        return _made[registry]


class PrometheusRecorder:
    """Exports metrics of an `Outbox` to Prometheus; the guide lists them.

    Several recorders on one registry share their metrics; the label `service` is the service's name. No label contains
    an id, a topic or a key.

    Args:
        registry: Where to register the metrics; the client's default registry by default.

    Example:
        outbox = Outbox("orders", recorder=PrometheusRecorder())
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = _metrics(registry)
        self._begun: set[str] = set()

    def _begin(self, service: str) -> None:
        """Show the counters of a service at 0, so that a rate includes the first event of each kind."""
        self._begun.add(service)
        self._metrics.ops_dropped.labels(service)
        for outcome in CommitOutcome:
            self._metrics.transactions.labels(service, outcome.value)

    def messages_published(self, service: str, count: int) -> None:
        """Count messages."""
        if service not in self._begun:
            self._begin(service)
        self._metrics.published.labels(service).inc(count)

    def halves_acked(self, service: str, count: int, seconds: float) -> None:
        """Observe the acknowledgement time, seconds."""
        del count
        self._metrics.ack_seconds.labels(service).observe(seconds)

    def transaction_ended(self, service: str, outcome: CommitOutcome) -> None:
        """Count transactions by outcome."""
        self._metrics.transactions.labels(service, outcome.value).inc()

    def ops_dropped(self, service: str, count: int) -> None:
        """Count op markers that did not reach Kafka."""
        self._metrics.ops_dropped.labels(service).inc(count)

    def check_answered(self, service: str, state: LocalTransactionState) -> None:
        """Count answers by state."""
        self._metrics.checks.labels(service, state.value).inc()

    def table_looked_at(self, service: str, unowned_seconds: int) -> None:
        """Count the look if it found old rows without an owner. The first look never does: the counter begins at 0."""
        self._metrics.table_unowned.labels(service).inc(bool(unowned_seconds))

    def circuit_opened(self, service: str) -> None:
        """Set the gauge."""
        self._metrics.circuit_open.labels(service).set(1)

    def circuit_closed(self, service: str) -> None:
        """Reset the gauge."""
        self._metrics.circuit_open.labels(service).set(0)
