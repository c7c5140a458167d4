"""Metrics of the checker; no label ever holds an id."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from checker.rules.settlement import Delay
from checker.rules.verdicts import Verdict
from outbox._service.contract_monitor import contract_gauge

REGISTRY = CollectorRegistry()

CONTRACT = contract_gauge(REGISTRY)

VERDICTS = Counter(
    "outbox_checker_verdicts",
    "Verdicts, by kind and database; UNMAPPED ones have none",
    ["verdict", "database"],
    registry=REGISTRY,
)
DROPPED = Counter(
    "outbox_checker_dropped",
    "Check requests not looked at, by reason: stale (10 minutes older than the newest of their partition; the checker "
    "is not ready), malformed, newer (of a newer format; the checker is not ready), unreadable (Kafka's client cannot "
    "unpack them; counted once for each jump to the log end), or queue_full (too many wait for one database)",
    ["reason"],
    registry=REGISTRY,
)
BATCH_SECONDS = Histogram(
    "outbox_checker_batch_seconds", "Time of one batch in its database", ["database"], registry=REGISTRY
)
BATCH_TRANSACTIONS = Histogram(
    "outbox_checker_batch_transactions",
    "Transactions of one batch",
    ["database"],
    buckets=(1, 10, 50, 100, 500, 1_000, 2_500, 5_000, 10_000),
    registry=REGISTRY,
)
OLDEST_UNDECIDED = Gauge(
    "outbox_checker_oldest_undecided_seconds",
    "Age of the oldest transaction that is asked about and not decided, by the clock in its id; 0: none",
    ["database"],
    registry=REGISTRY,
)
DATABASE_UP = Gauge(
    "outbox_checker_database_up",
    "1: the database answered when it was looked at last, and its tables, rights and settings are right",
    ["database"],
    registry=REGISTRY,
)
BREAKERS_OPEN = Gauge(
    "outbox_checker_breakers_open",
    "Producer groups that are not fenced, because they commit nothing in this database any more",
    ["database"],
    registry=REGISTRY,
)
PREPARED = Gauge(
    "outbox_checker_oldest_prepared_seconds",
    "Age of the oldest prepared transaction of the database; 0: none",
    ["database"],
    registry=REGISTRY,
)
RELOADS = Counter(
    "outbox_checker_reloads",
    "New configurations of the databases (SIGHUP), by outcome: taken or refused",
    ["outcome"],
    registry=REGISTRY,
)

_STATES = ("C", "R")
_OF_A_DATABASE = (BATCH_SECONDS, BATCH_TRANSACTIONS, OLDEST_UNDECIDED, DATABASE_UP, BREAKERS_OPEN, PREPARED)
PURGED = Counter(
    "outbox_checker_purged_rows",
    "Rows deleted, by state: C of settled transactions, R rollback rows",
    ["database", "state"],
    registry=REGISTRY,
)
PURGE_COMPLETED = Gauge(
    "outbox_checker_purge_completed_seconds",
    "When a purge last came to its end, seconds since 1970; at first, when this process started",
    ["database"],
    registry=REGISTRY,
)
AUDIT_COMPLETED = Gauge(
    "outbox_checker_settlement_completed_seconds",
    "When a settlement audit last came to its end, seconds since 1970; at first, when this process started",
    ["database"],
    registry=REGISTRY,
)
UNDELIVERED = Gauge(
    "outbox_checker_undelivered",
    "Committed transactions older than settlement_max_age_ms that are not delivered, by what delays them",
    ["database", "kind"],
    registry=REGISTRY,
)

# From the beginning at 0, so that a rate sees the first one.
VERDICTS.labels(Verdict.UNMAPPED, "")
for _reason in ("stale", "malformed", "newer", "unreadable", "queue_full"):
    DROPPED.labels(_reason)
for _outcome in ("taken", "refused"):
    RELOADS.labels(_outcome)


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
