"""What was done, told in logs and metrics: ids and reasons, never a payload."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import structlog

from outbox.protocol.discard import DiscardReason
from relay import metrics
from relay.batch import Batch, Outcome
from relay.discards import Move
from relay.gate import News
from relay.transaction import Finding, Transaction

log = structlog.get_logger()


def written(batch: Batch, outcome: Outcome, partition: int) -> None:
    """A Kafka transaction was committed. What may be thousands is told in one line, with one of the ids."""
    for transaction, finding in outcome.refused:
        _refused(transaction, finding)
    for half in batch.malformed:
        log.error("a half cannot be parsed and is discarded", partition=partition, offset=half.offset)
    _parked(batch.moves, partition)
    late = [transaction for transaction in outcome.delivered if transaction.discarded]
    for what, some in (("delivered", late), ("removed", batch.removed)):
        if some:
            log.info("discarded transactions leave", what=what, partition=partition, count=len(some), one=some[0].id)
    if batch.ready:
        metrics.MESSAGES.inc(sum(len(transaction.counted()) for transaction in outcome.delivered))
        metrics.TRANSACTIONS.labels("taken").inc(len(batch.ready))
    metrics.TRANSACTIONS.labels("late").inc(len(late))
    metrics.TRANSACTIONS.labels("removed").inc(len(batch.removed))


def waiting(news: Sequence[News], partition: int) -> None:
    """Transactions begin to wait for real topics, or wait no longer."""
    for topic, detail in news:
        if detail:
            log.warning("transactions wait for a real topic", partition=partition, topic=topic, detail=detail)
        else:
            log.info("transactions wait no longer for a real topic", partition=partition, topic=topic)


def _refused(transaction: Transaction, finding: Finding) -> None:
    say = log.error if finding.reason is DiscardReason.INCOMPLETE else log.warning
    say(
        "a transaction is discarded",
        transaction=transaction.id,
        group=transaction.group,
        reason=str(finding.reason),
        detail=finding.detail,
    )
    metrics.TRANSACTIONS.labels(f"discarded_{finding.reason.lower()}").inc()


def _parked(moves: Sequence[Move], partition: int) -> None:
    groups: defaultdict[tuple[str, str], list[Move]] = defaultdict(list)
    for move in moves:
        finding = move.transaction.discarded
        groups[move.transaction.group, finding.detail if finding else ""].append(move)
    for (group, detail), some in groups.items():
        log.warning(
            "undecided transactions are parked",
            partition=partition,
            group=group,
            detail=detail,
            count=len(some),
            one=some[0].transaction.id,
        )
        metrics.PARKED.inc(sum(len(move.halves) for move in some))
