"""What was done, told in logs and metrics: ids and reasons, never a payload."""

from __future__ import annotations

import structlog

from outbox.protocol.discard import DiscardReason
from relay import metrics
from relay.batch import Batch, Outcome

log = structlog.get_logger()


def written(batch: Batch, outcome: Outcome, partition: int) -> None:
    """A Kafka transaction was committed."""
    _discarded(batch, outcome, partition)
    late = [transaction for transaction in outcome.delivered if transaction.discarded]
    for transaction in late:
        log.info("a discarded transaction is delivered after all", transaction=transaction.id, partition=partition)
    for transaction in batch.removed:
        log.info("a discarded transaction is removed", transaction=transaction.id, partition=partition)
    if batch.ready:
        metrics.MESSAGES.inc(sum(len(transaction.counted()) for transaction in outcome.delivered))
        metrics.TRANSACTIONS.labels("taken").inc(len(batch.ready))
    metrics.TRANSACTIONS.labels("late").inc(len(late))
    metrics.TRANSACTIONS.labels("removed").inc(len(batch.removed))


def _discarded(batch: Batch, outcome: Outcome, partition: int) -> None:
    for transaction, finding in outcome.refused:
        say = log.error if finding.reason is DiscardReason.INCOMPLETE else log.warning
        say(
            "a transaction is discarded",
            transaction=transaction.id,
            group=transaction.group,
            reason=str(finding.reason),
            detail=finding.detail,
        )
        metrics.TRANSACTIONS.labels(f"discarded_{finding.reason.lower()}").inc()
    for transaction, halves in batch.moves:
        if transaction.discarded:
            log.warning(
                "an undecided transaction is parked",
                transaction=transaction.id,
                group=transaction.group,
                halves=len(halves),
                detail=transaction.discarded.detail,
            )
            metrics.PARKED.inc(len(halves))
    for half in batch.malformed:
        log.error("a half cannot be parsed and is discarded", partition=partition, offset=half.offset)
