"""Metrics of the checker; no label ever holds an id."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

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

# From the beginning at 0, so that a rate sees the first one.
for _verdict in Verdict:
    VERDICTS.labels(_verdict)
for _reason in ("stale", "malformed"):
    DROPPED.labels(_reason)
