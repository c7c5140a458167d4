"""What was done with half messages, in logs and metrics: ids and reasons, never a payload."""

import heapq
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import structlog

from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpSource
from relay import metrics
from relay.delivery.delivery_telemetry import became_visible, discarded, refused
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.op_decisions import Contradiction, Report
from relay.half.serving.hand_out import Batch
from relay.half.state.discard_index import ParkedHalves
from relay.half.state.message_transaction import State

OLD_MS = 60_000
"""Age from which an undecided transaction is exported with its service."""
SERVICES = 10
"""Services that are exported of a half partition."""

_SOURCES = frozenset(OpSource)

log = structlog.get_logger()


def report_batch(batch: Batch, partition: int) -> None:
    """Report a committed Kafka transaction in one line, with one of its ids."""
    delivered = batch.delivered()
    for transaction, finding in batch.refused.items():
        refused(transaction.id, transaction.service, finding)
    _parked(batch.moves, partition)
    late = [transaction for transaction in delivered if transaction.discarded]
    expired = [found for found in batch.removed if found.state is State.DISCARDED]  # no operator has decided on them
    removed = [found for found in batch.removed if found.state is not State.DISCARDED]
    for what, some in (("delivered", late), ("removed", removed), ("deleted by age", expired)):
        if some:
            log.info(
                "Transactions left the discard topic", what=what, partition=partition, count=len(some), one=some[0].id
            )
    for half in batch.malformed:
        log.error("Malformed half discarded", partition=partition, offset=half.offset)
        discarded(metrics.OTHERS, DiscardReason.MALFORMED)
    if log.is_enabled_for(logging.DEBUG):
        found = [(half.control.transaction_id, [half.offset]) for half, _ in batch.plain if half.control]
        found += [(transaction.id, [half.offset for half in transaction.counted()]) for transaction in delivered]
        for id_, offsets in found:
            ends = {"first": offsets[0], "last": offsets[-1]}
            log.debug("Transaction delivered", transaction=id_, partition=partition, **ends)
    visible = [(half.control.service, marker.append_time) for half, marker in batch.plain if half.control]
    visible += [(found.service, found.decided_at) for found in delivered for _ in found.counted()]
    became_visible(((service, ms * 1_000) for service, ms in visible), time.time_ns() // 1_000)
    metrics.TRANSACTIONS.labels("delivered").inc(len(batch.plain) + len(delivered) - len(late))
    metrics.TRANSACTIONS.labels("late").inc(len(late))
    metrics.TRANSACTIONS.labels("removed").inc(len(batch.removed))
    metrics.EVENTS.labels("expired").inc(sum(len(found.halves) for found in expired))


def _parked(moves: Sequence[ParkedHalves], partition: int) -> None:
    services: defaultdict[tuple[str, str], list[ParkedHalves]] = defaultdict(list)
    for move in moves:
        finding = move.transaction.discarded
        services[move.transaction.service, finding.detail if finding else ""].append(move)
    for (service, detail), some in services.items():
        log.warning(
            "Undecided transactions parked",
            partition=partition,
            service=service,
            detail=detail,
            count=len(some),
            one=some[0].transaction.id,
        )
        discarded(service, DiscardReason.UNDECIDED, len({move.transaction.id for move in some}))


def counted(counts: Counter[str], partition: int) -> None:
    """Add what a ledger counted since the last call."""
    for kind, count in counts.items():
        what, _, source = kind.partition("_")
        if source in _SOURCES:
            metrics.OPS.labels(what, source).inc(count)
        elif kind == "rolled_back":
            metrics.TRANSACTIONS.labels(kind).inc(count)
        else:
            metrics.EVENTS.labels(kind).inc(count)
        if kind == "op_lost":
            log.error("LOST: committed halves are missing from the half topic", partition=partition, count=count)


def contradicted(found: Sequence[Contradiction], partition: int) -> None:
    """Log decisions that contradict those that were obeyed."""
    for one in found:
        log.error(
            "Decision contradicts the one that was obeyed",
            partition=partition,
            transaction=one.transaction_id,
            obeyed=one.obeyed.name,
            later=one.later.name,
            source=str(one.source),
        )


def misplaced(report: Report | None, partition: int) -> None:
    """Log op records that were dropped because their source does not write to their topic (R65)."""
    if report is not None:
        log.error(
            "Op records dropped: their source does not write to their topic",
            partition=partition,
            count=report.records,
            topic="verdict" if report.newest.is_verdict else "op",
            offset=report.newest.offset,
            detail=report.newest.error,
        )


def deferring(before: Collection[str], now: Collection[str], partition: int) -> None:
    """Log the services whose halves are deferred from now on, and those whose halves are not any more."""
    for service in sorted(set(now) - set(before)):
        log.warning("Halves deferred: the service is at its limit", partition=partition, service=service)
    for service in sorted(set(before) - set(now)):
        log.info("Halves no longer deferred", partition=partition, service=service)


def set_waiting_figures(ledger: Ledger, now: int) -> None:
    partition, oldest = ledger.partition, ledger.oldest_pending()
    metrics.PENDING.labels(partition).set(len(ledger.pending))
    metrics.DEFERRED.labels(partition).set(len(ledger.deferred))
    metrics.WAITING.labels(partition).set(ledger.deliveries.queue.held())
    metrics.OLDEST_SECONDS.labels(partition).set(0 if oldest is None else max(now - oldest, 0) / 1000)
    for kind, number in zip(("undecided", "undeliverable"), ledger.discards.count(), strict=True):
        metrics.DISCARDED.labels(partition, kind).set(number)
    metrics.DISCARDED.labels(partition, "expiring").set(ledger.discards.expiring)
    _oldest_undecided(ledger, now)


def _oldest_undecided(ledger: Ledger, now: int) -> None:
    """Export the services that have waited longest; the others have no series."""
    gauge, partition = metrics.OLDEST_UNDECIDED_SECONDS, str(ledger.partition)
    oldest = ledger.pending.oldest_undecided(now - OLD_MS)
    ages = {
        (partition, service, str(truth)): (now - oldest[service, truth]) / 1000
        for service, truth in heapq.nsmallest(SERVICES, oldest, key=oldest.__getitem__)
    }
    for labels, age in ages.items():
        gauge.labels(*labels).set(age)
    for found in gauge.of_channel():
        labels = (found["partition"], found["service"], found["truth"])
        if labels[0] == partition and labels not in ages:
            gauge.remove(*labels)
