"""What was delivered, refused or kept waiting, in logs and metrics: ids and reasons, never a payload."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import structlog

from outbox._service.channels.channel_context import current_channel
from outbox.protocol.discard import DiscardReason
from relay import metrics
from relay.delivery.producer import DeliveryError
from relay.delivery.rules.outgoing import Finding
from relay.delivery.rules.topic_gate import TopicStatusChange
from relay.delivery.rules.volume import BatchPolicy

MEASURED_SERVICES = 100
"""Services of a channel that a metric measures apart: an application may make up any number of names."""

_measured: defaultdict[tuple[str, object], set[str]] = defaultdict(set)

log = structlog.get_logger()


def became_visible(since: Iterable[tuple[str, int]], now: int) -> None:
    """Measure how long messages took until they were visible: the service of each, and since when (µs)."""
    services: defaultdict[str, list[int]] = defaultdict(list)
    for service, time in since:
        services[service].append(time)
    for service, times in services.items():
        _label(metrics.DISCARDS, service)  # a counter is at 0 before it counts
        metrics.DELIVERY_SECONDS.labels(_label(metrics.DELIVERY_SECONDS, service)).observe_since(times, now)


def discarded(service: str, reason: DiscardReason, count: int = 1) -> None:
    """Count transactions of a service that left the flow."""
    metrics.DISCARDS.labels(reason, _label(metrics.DISCARDS, service)).inc(count)


def _label(metric: object, service: str) -> str:
    """Return the label that a metric has for a service: its name, or that of the others."""
    known = _measured[current_channel(), metric]
    if service not in known and len(known) < MEASURED_SERVICES:
        known.add(service)
        if metric is metrics.DISCARDS:
            metrics.show_discards(service)
    return service if service in known else metrics.OTHERS


def failed(error: DeliveryError, closed: Mapping[str, int], limit: BatchPolicy, **owner: int | str) -> None:
    """Log the topics that a failed Kafka transaction closes, and the size of the next batch after a time-out."""
    reasons = {found.topic: found.error.name() for found in error.undelivered}
    for topic, pause in closed.items():
        log.warning("Real topic closed after failed records", topic=topic, error=reasons[topic], ms=pause, **owner)
    if error.timed_out:
        log.warning("Batch timed out", next_messages=limit.messages, next_bytes=limit.bytes, **owner)


def usual_time_outs(**owner: int | str) -> None:
    """Log that the next producer has the usual time-outs, after one with longer ones did not take over."""
    log.warning("Usual time-outs again: longer ones may be above the brokers' transaction.max.timeout.ms", **owner)


def at_gate(news: Sequence[TopicStatusChange], **owner: int | str) -> None:
    """Log that transactions begin to wait for real topics, or wait no longer."""
    for topic, detail in news:
        if detail:
            log.warning("Transactions wait for a real topic", topic=topic, detail=detail, **owner)
        else:
            log.info("Transactions wait no longer for a real topic", topic=topic, **owner)


def refused(transaction_id: str, service: str, finding: Finding) -> None:
    say = log.error if finding.reason is DiscardReason.INCOMPLETE else log.warning
    reason = str(finding.reason)
    say("Transaction discarded", transaction=transaction_id, service=service, reason=reason, detail=finding.detail)
    discarded(service, finding.reason)
