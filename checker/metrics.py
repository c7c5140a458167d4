"""Metrics of the checker; no label ever holds an id."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from outbox.service.contract_watch import contract_gauge

REGISTRY = CollectorRegistry()

CONTRACT = contract_gauge(REGISTRY)

VERDICTS = Counter("outbox_checker_verdicts", "Verdicts, by database", ["database", "verdict"], registry=REGISTRY)
DROPPED = Counter("outbox_checker_dropped", "Check requests not looked at, by reason", ["reason"], registry=REGISTRY)
