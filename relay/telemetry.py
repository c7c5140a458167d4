"""What was done, in logs and metrics: ids and reasons, never a payload."""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import structlog

from outbox._service.channels.channel_context import current_channel
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpSource
from relay import metrics
from relay.batching.batch import Batch, Outcome
from relay.batching.pacing import BatchPolicy
from relay.batching.topic_gate import TopicStatusChange
from relay.kafka.producer import DeliveryError
from relay.ledger.ledger import Ledger
from relay.state.discard_index import ParkedHalves
from relay.state.dropped import Report
from relay.state.message_transaction import Finding, Transaction
from relay.state.obeyed import Contradiction

OLD_MS = 60_000
"""Age from which an undecided transaction is exported with its producer group."""
GROUPS = 10
"""Producer groups that are exported of a half partition; of those whose rows wait, how many are logged at once."""
MEASURED_GROUPS = 100
"""Producer groups of a channel whose deliveries are measured apart: an application may make up any number of names."""
OTHERS = "(others)"
"""Label of the others; no group can have this name."""
TOLD_SECONDS = 60.0
"""Time until it is logged again that rows wait."""

_SOURCES = frozenset(OpSource)

_measured: defaultdict[str, set[str]] = defaultdict(set)

log = structlog.get_logger()


def report_batch(batch: Batch, outcome: Outcome, partition: int) -> None:
    """Report a committed Kafka transaction in one line, with one of its ids."""
    for transaction, finding in outcome.refused:
        refused(transaction, finding)
    _parked(batch.moves, partition)
    late = [transaction for transaction in outcome.delivered if transaction.discarded]
    for what, some in (("delivered", late), ("removed", batch.removed)):
        if some:
            log.info(
                "Transactions left the discard topic", what=what, partition=partition, count=len(some), one=some[0].id
            )
    for half in batch.malformed:
        log.error("Malformed half discarded", partition=partition, offset=half.offset)
    if log.is_enabled_for(logging.DEBUG):
        for transaction in outcome.delivered:
            offsets = [half.offset for half in transaction.counted()]
            log.debug(
                "Transaction delivered",
                transaction=transaction.id,
                partition=partition,
                first=offsets[0],
                last=offsets[-1],
            )
    metrics.DISCARDS.labels(DiscardReason.MALFORMED).inc(len(batch.malformed))
    delivered = ((found.group, found.decided_at, len(found.counted())) for found in outcome.delivered)
    became_visible(delivered, time.time_ns() // 1_000_000)
    metrics.TRANSACTIONS.labels("delivered").inc(len(outcome.delivered) - len(late))
    metrics.TRANSACTIONS.labels("late").inc(len(late))
    metrics.TRANSACTIONS.labels("removed").inc(len(batch.removed))


def became_visible(delivered: Iterable[tuple[str, int, int]], now: int) -> None:
    """Measure how long messages took until they were visible.

    Args:
        delivered: Producer group, ms from which on the time counts, and how many messages.
        now: The time now, ms.
    """
    groups: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for group, since, messages in delivered:
        groups[group][max(now - since, 0) / 1_000] += messages
    known = _measured[current_channel()]
    for group, seconds in groups.items():
        if len(known) < MEASURED_GROUPS:
            known.add(group)
        metrics.DELIVERY_SECONDS.labels(group if group in known else OTHERS).observe_each(seconds)


def failed(error: DeliveryError, closed: Mapping[str, int], limit: BatchPolicy, **owner: int | str) -> None:
    """Log the topics that a failed Kafka transaction closes, and the size of the next batch after a time-out.

    Args:
        closed: For how long real topics are closed, ms.
        owner: `partition` or `source`.
    """
    reasons = {found.topic: found.error.name() for found in error.undelivered}
    for topic, pause in closed.items():
        log.warning("Real topic closed after failed records", topic=topic, error=reasons[topic], ms=pause, **owner)
    if error.timed_out:
        log.warning("Batch timed out", next_messages=limit.messages, next_bytes=limit.bytes, **owner)


def at_gate(news: Sequence[TopicStatusChange], **owner: int | str) -> None:
    """Log that transactions begin to wait for real topics, or wait no longer."""
    for topic, detail in news:
        if detail:
            log.warning("Transactions wait for a real topic", topic=topic, detail=detail, **owner)
        else:
            log.info("Transactions wait no longer for a real topic", topic=topic, **owner)


class RowsThatWait:
    """Logs again and again which rows of a table source wait for which real topics: those who published do not know."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._due: dict[tuple[str, str], float] = {}

    def tell(self, rows: Mapping[tuple[str, str], int], now: float) -> None:
        """Log the most numerous of them, each once a minute.

        Args:
            rows: How many rows wait, by topic and producer group.
            now: Monotonic seconds.
        """
        self._due = {place: due for place, due in self._due.items() if place in rows and now < due}
        for place in heapq.nlargest(GROUPS, rows, key=rows.__getitem__):
            if place not in self._due:
                self._due[place] = now + TOLD_SECONDS
                topic, group = place
                log.warning(
                    "Rows wait for a real topic", source=self._source, topic=topic, group=group, rows=rows[place]
                )


def refused(transaction: Transaction, finding: Finding) -> None:
    """Report a transaction that cannot be delivered."""
    say = log.error if finding.reason is DiscardReason.INCOMPLETE else log.warning
    say(
        "Transaction discarded",
        transaction=transaction.id,
        group=transaction.group,
        reason=str(finding.reason),
        detail=finding.detail,
    )
    metrics.DISCARDS.labels(finding.reason).inc()


def _parked(moves: Sequence[ParkedHalves], partition: int) -> None:
    groups: defaultdict[tuple[str, str], list[ParkedHalves]] = defaultdict(list)
    for move in moves:
        finding = move.transaction.discarded
        groups[move.transaction.group, finding.detail if finding else ""].append(move)
    for (group, detail), some in groups.items():
        log.warning(
            "Undecided transactions parked",
            partition=partition,
            group=group,
            detail=detail,
            count=len(some),
            one=some[0].transaction.id,
        )
        metrics.DISCARDS.labels(DiscardReason.UNDECIDED).inc(len({move.transaction.id for move in some}))


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
    """Log the producer groups whose halves are deferred from now on, and those whose halves are not any more."""
    for group in sorted(set(now) - set(before)):
        log.warning("Halves deferred: the producer group is at its limit", partition=partition, group=group)
    for group in sorted(set(before) - set(now)):
        log.info("Halves no longer deferred", partition=partition, group=group)


def set_waiting_figures(ledger: Ledger, now: int) -> None:
    """Set the figures of what waits in a half partition.

    Args:
        now: The broker's time, ms.
    """
    partition, oldest = ledger.partition, ledger.oldest_pending()
    metrics.PENDING.labels(partition).set(len(ledger.pending))
    metrics.DEFERRED.labels(partition).set(len(ledger.deferred))
    metrics.WAITING.labels(partition).set(ledger.deliveries.queue.held())
    metrics.OLDEST_SECONDS.labels(partition).set(0 if oldest is None else max(now - oldest, 0) / 1000)
    for kind, number in zip(("undecided", "undeliverable"), ledger.discards.count(), strict=True):
        metrics.DISCARDED.labels(partition, kind).set(number)
    _oldest_undecided(ledger, now)


def _oldest_undecided(ledger: Ledger, now: int) -> None:
    """Export the producer groups that have waited longest; the others have no series."""
    gauge, partition = metrics.OLDEST_UNDECIDED_SECONDS, str(ledger.partition)
    oldest = ledger.pending.oldest_undecided(now - OLD_MS)
    ages = {
        (partition, group, str(truth)): (now - oldest[group, truth]) / 1000
        for group, truth in heapq.nsmallest(GROUPS, oldest, key=oldest.__getitem__)
    }
    for labels, age in ages.items():
        gauge.labels(*labels).set(age)
    for found in gauge.of_channel():
        labels = (found["partition"], found["producer_group"], found["truth"])
        if labels[0] == partition and labels not in ages:
            gauge.remove(*labels)


def table_figures(source: str, figures: tuple[float, int, int] | None) -> None:
    """Show what waits in the table of a source, and what is discarded.

    Args:
        figures: Age of its oldest row in seconds, 0: none; how many wait; how many are discarded. None: not known.
    """
    if figures is None:
        forget_table(source)
        return
    oldest_seconds, rows, discarded = figures
    metrics.TABLE_OLDEST_SECONDS.labels(source).set(oldest_seconds)
    metrics.TABLE_ROWS.labels(source, metrics.UNDELIVERED).set(rows)
    metrics.TABLE_ROWS.labels(source, metrics.DISCARDED_ROWS).set(discarded)


def forget_table(source: str) -> None:
    """Remove the figures of a table that this process does not look at: those of earlier would mislead."""
    for gauge in (metrics.TABLE_OLDEST_SECONDS, metrics.TABLE_ROWS):
        gauge.remove_by_labels({"source": source})
