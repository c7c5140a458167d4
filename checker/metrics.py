"""Metrics of the checker; no label ever holds an id."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from checker.rules.settlement import Delay
from checker.rules.verdicts import Verdict
from outbox._service.channels.channel_metrics import (
    CHANNEL,
    ChannelCounter,
    ChannelGauge,
    ChannelHistogram,
    ready_gauge,
    restarts_counter,
)
from outbox._service.contract_monitor import contract_gauge

REGISTRY = CollectorRegistry()

CONTRACT = contract_gauge(REGISTRY)

READY = ready_gauge(REGISTRY, "checker")
RESTARTS = restarts_counter(REGISTRY, "checker")

VERDICTS = ChannelCounter(
    "outbox_checker_verdicts",
    "Verdicts, by kind and database; UNMAPPED ones have none",
    [CHANNEL, "verdict", "database"],
    registry=REGISTRY,
)
DROPPED = ChannelCounter(
    "outbox_checker_dropped",
    "Check requests not looked at, by reason: stale (10 minutes older than the newest of their partition; the checker "
    "is not ready), malformed, newer (of a newer format; the checker is not ready), unreadable (Kafka's client cannot "
    "unpack them; counted once for each jump to the log end), or queue_full (too many wait for one database)",
    [CHANNEL, "reason"],
    registry=REGISTRY,
)
BATCH_SECONDS = ChannelHistogram(
    "outbox_checker_batch_seconds", "Time of one batch in its database", [CHANNEL, "database"], registry=REGISTRY
)
BATCH_TRANSACTIONS = ChannelHistogram(
    "outbox_checker_batch_transactions",
    "Transactions of one batch",
    [CHANNEL, "database"],
    buckets=(1, 10, 50, 100, 500, 1_000, 2_500, 5_000, 10_000),
    registry=REGISTRY,
)
OLDEST_UNDECIDED = ChannelGauge(
    "outbox_checker_oldest_undecided_seconds",
    "Age of the oldest transaction that is asked about and not decided, by the clock in its id; 0: none",
    [CHANNEL, "database"],
    registry=REGISTRY,
)
DATABASE_UP = ChannelGauge(
    "outbox_checker_database_up",
    "1: the database answered when it was looked at last, and its tables, rights and settings are right",
    [CHANNEL, "database"],
    registry=REGISTRY,
)
BREAKERS_OPEN = ChannelGauge(
    "outbox_checker_breakers_open",
    "Producer groups that are not fenced, because they commit nothing in this database any more",
    [CHANNEL, "database"],
    registry=REGISTRY,
)
PREPARED = ChannelGauge(
    "outbox_checker_oldest_prepared_seconds",
    "Age of the oldest prepared transaction of the database; 0: none",
    [CHANNEL, "database"],
    registry=REGISTRY,
)
RELOADS = ChannelCounter(
    "outbox_checker_reloads",
    "New configurations of the databases (SIGHUP), by outcome: taken or refused",
    [CHANNEL, "outcome"],
    registry=REGISTRY,
)

_STATES = ("C", "R")
_OF_A_DATABASE = (BATCH_SECONDS, BATCH_TRANSACTIONS, OLDEST_UNDECIDED, DATABASE_UP, BREAKERS_OPEN, PREPARED)
PURGED = ChannelCounter(
    "outbox_checker_purged_rows",
    "Rows deleted, by state: C of settled transactions, R rollback rows",
    [CHANNEL, "database", "state"],
    registry=REGISTRY,
)
PURGE_COMPLETED = ChannelGauge(
    "outbox_checker_purge_completed_seconds",
    "When a purge last came to its end, seconds since 1970; at first, when this process started",
    [CHANNEL, "database"],
    registry=REGISTRY,
)
AUDIT_COMPLETED = ChannelGauge(
    "outbox_checker_settlement_completed_seconds",
    "When a settlement audit last came to its end, seconds since 1970; at first, when this process started",
    [CHANNEL, "database"],
    registry=REGISTRY,
)
UNDELIVERED = ChannelGauge(
    "outbox_checker_undelivered",
    "Committed transactions older than settlement_max_age_ms that are not delivered, by what delays them",
    [CHANNEL, "database", "kind"],
    registry=REGISTRY,
)


def open_channel() -> None:
    """Show the metrics of this thread's channel from the beginning at 0, so that a rate includes the first event."""
    VERDICTS.labels(Verdict.UNMAPPED, "")
    for reason in ("stale", "malformed", "newer", "unreadable", "queue_full"):
        DROPPED.labels(reason)
    for outcome in ("taken", "refused"):
        RELOADS.labels(outcome)


def know(database: str) -> None:
    """Create the metrics of a database, at 0."""
    for verdict in Verdict:
        if verdict is not Verdict.UNMAPPED:
            VERDICTS.labels(verdict, database)
    for metric in _OF_A_DATABASE:
        metric.labels(database)


def forget(database: str) -> None:
    """Remove the metrics of a database that is no longer served."""
    for metric in _OF_A_DATABASE:
        metric.remove(database)
    for verdict in Verdict:
        if verdict is not Verdict.UNMAPPED:
            VERDICTS.remove(verdict, database)


def begin(database: str, *, purge: bool) -> None:
    """Show the figures of a database's upkeep from the beginning: its audit is due, and its purge if it has one."""
    audited(database, dict.fromkeys(Delay, 0))
    if purge:
        for state in _STATES:
            PURGED.labels(database, state)
        PURGE_COMPLETED.labels(database).set_to_current_time()


def end(database: str) -> None:
    """Remove the metrics of a database whose upkeep has ended."""
    for kind in Delay:
        UNDELIVERED.remove(database, kind)
    for state in _STATES:
        PURGED.remove(database, state)
    AUDIT_COMPLETED.remove(database)
    PURGE_COMPLETED.remove(database)


def audited(database: str, undelivered: Mapping[Delay, int]) -> None:
    """Record the result of a completed settlement audit."""
    for kind, count in undelivered.items():
        UNDELIVERED.labels(database, kind).set(count)
    AUDIT_COMPLETED.labels(database).set_to_current_time()


def purged(database: str, rows: Mapping[str, int]) -> None:
    """Rows were deleted, by state."""
    for state, count in rows.items():
        PURGED.labels(database, state).inc(count)
