"""Metrics of the checker; no label ever holds an id."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from checker.settled import Delay
from checker.verdicts import Verdict
from outbox.service.contract_watch import contract_gauge

REGISTRY = CollectorRegistry()

CONTRACT = contract_gauge(REGISTRY)

VERDICTS = Counter("outbox_checker_verdicts", "Verdicts, by kind", ["verdict"], registry=REGISTRY)
DROPPED = Counter(
    "outbox_checker_dropped",
    "Check requests not looked at, by reason: stale or malformed",
    ["reason"],
    registry=REGISTRY,
)
PURGED = Counter(
    "outbox_checker_purged_rows",
    "Rows deleted, by state: C of settled transactions, R tombstones",
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
    "Committed transactions older than settlement_max_age that are not delivered, by what delays them",
    ["database", "kind"],
    registry=REGISTRY,
)

# From the beginning at 0, so that a rate sees the first one.
for _verdict in Verdict:
    VERDICTS.labels(_verdict)
for _reason in ("stale", "malformed"):
    DROPPED.labels(_reason)


def begin(database: str, *, purge: bool) -> None:
    """Show the figures of a database from the beginning: its audit is due, and its purge if it has one."""
    for kind in Delay:
        UNDELIVERED.labels(database, kind)
    AUDIT_COMPLETED.labels(database).set_to_current_time()
    if purge:
        for state in ("C", "R"):
            PURGED.labels(database, state)
        PURGE_COMPLETED.labels(database).set_to_current_time()
