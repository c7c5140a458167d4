"""A recorder for Prometheus; needs the extra `metrics`."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from outbox._kafka.forks import ForkSafeLock
from outbox.listener import LocalTransactionState
from outbox.recorder import CommitOutcome

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "outbox.prometheus needs an extra. Run pip install 'kafka-transactional-outbox[metrics]'", name=error.name
    ) from error

_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds, up to the default `publish_timeout_seconds`."""


class _Metrics(NamedTuple):
    published: Counter
    ack_seconds: Histogram
    halves: Counter
    transactions: Counter
    ops_dropped: Counter
    checks: Counter
    table_unowned: Counter
    circuit_open: Gauge
    circuit_changes: Counter


_lock = ForkSafeLock()
_made: weakref.WeakKeyDictionary[CollectorRegistry, _Metrics] = weakref.WeakKeyDictionary()


def _metrics(registry: CollectorRegistry) -> _Metrics:
    """Return the metrics of a registry, created at the first call: a registry refuses a second metric of a name."""
    with _lock.free:
        if registry not in _made:
            _made[registry] = _Metrics(
                Counter("outbox_messages_published", "Messages that publish() accepted", ["group"], registry=registry),
                Histogram(
                    "outbox_half_ack_seconds",
                    "Time from sending the halves of a transaction to their last acknowledgement",
                    ["group"],
                    registry=registry,
                    buckets=_BUCKETS,
                ),
                Counter("outbox_halves_acked", "Half messages that Kafka acknowledged", ["group"], registry=registry),
                Counter(
                    "outbox_transactions",
                    "Local transactions that ended, by outcome",
                    ["group", "outcome"],
                    registry=registry,
                ),
                Counter("outbox_ops_dropped", "Op markers that did not reach Kafka", ["group"], registry=registry),
                Counter(
                    "outbox_checks_answered", "Check requests answered, by state", ["group", "state"], registry=registry
                ),
                Counter(
                    "outbox_table_unowned",
                    "Looks, at most one a minute, that again found old rows in the message table, and no relay",
                    ["group"],
                    registry=registry,
                ),
                Gauge(
                    "outbox_circuit_open",
                    "1 while nothing is sent because Kafka does not answer, else 0",
                    ["group"],
                    registry=registry,
                ),
                Counter(
                    "outbox_circuit_changes",
                    "Changes of the circuit, by its new state: open, closed",
                    ["group", "state"],
                    registry=registry,
                ),
            )
        return _made[registry]


class PrometheusRecorder:
    """Exports metrics of an `Outbox` to Prometheus; the guide lists them.

    Several recorders on one registry share their metrics; the label `group` is the producer group. No label contains
    an id, a topic or a key.

    Args:
        registry: Where to register the metrics; the client's default registry by default.

    Example:
        outbox = Outbox("orders", recorder=PrometheusRecorder())
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._metrics = _metrics(registry)
        self._begun: set[str] = set()

    def _begin(self, group: str) -> None:
        """Show the counters of a group at 0, so that a rate includes the first event of each kind."""
        self._begun.add(group)
        for counter in (self._metrics.halves, self._metrics.ops_dropped):
            counter.labels(group)
        for outcome in CommitOutcome:
            self._metrics.transactions.labels(group, outcome.value)
        for state in ("open", "closed"):
            self._metrics.circuit_changes.labels(group, state)

    def messages_published(self, group: str, count: int) -> None:
        """Count messages."""
        if group not in self._begun:
            self._begin(group)
        self._metrics.published.labels(group).inc(count)

    def halves_acked(self, group: str, count: int, seconds: float) -> None:
        """Count halves and observe their acknowledgement time, seconds."""
        self._metrics.halves.labels(group).inc(count)
        self._metrics.ack_seconds.labels(group).observe(seconds)

    def transaction_ended(self, group: str, outcome: CommitOutcome) -> None:
        """Count transactions by outcome."""
        self._metrics.transactions.labels(group, outcome.value).inc()

    def ops_dropped(self, group: str, count: int) -> None:
        """Count op markers that did not reach Kafka."""
        self._metrics.ops_dropped.labels(group).inc(count)

    def check_answered(self, group: str, state: LocalTransactionState) -> None:
        """Count answers by state."""
        self._metrics.checks.labels(group, state.value).inc()

    def table_looked_at(self, group: str, unowned_seconds: int) -> None:
        """Count the look if it found old rows without an owner. The first look never does: the counter begins at 0."""
        self._metrics.table_unowned.labels(group).inc(bool(unowned_seconds))

    def circuit_opened(self, group: str) -> None:
        """Set the gauge."""
        self._metrics.circuit_open.labels(group).set(1)
        self._metrics.circuit_changes.labels(group, "open").inc()

    def circuit_closed(self, group: str) -> None:
        """Reset the gauge."""
        self._metrics.circuit_open.labels(group).set(0)
        self._metrics.circuit_changes.labels(group, "closed").inc()
