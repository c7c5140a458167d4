"""Metrics of the relay; no label ever holds an id."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outbox.service.contract_watch import contract_gauge

REGISTRY = CollectorRegistry()

CONTRACT = contract_gauge(REGISTRY)

MESSAGES = Counter("outbox_relay_messages", "Messages made visible on real topics", registry=REGISTRY)
TRANSACTIONS = Counter("outbox_relay_transactions", "Transactions settled, by outcome", ["outcome"], registry=REGISTRY)
EVENTS = Counter("outbox_relay_events", "What the ledger counts, by kind", ["kind"], registry=REGISTRY)
CHECKS = Counter("outbox_relay_check_requests", "Check requests sent", registry=REGISTRY)
FAILURES = Counter("outbox_relay_failures", "Kafka transactions that failed and were done anew", registry=REGISTRY)
PENDING = Gauge("outbox_relay_pending", "Transactions undecided, incomplete or held", ["partition"], registry=REGISTRY)
COMMIT_SECONDS = Histogram("outbox_relay_commit_seconds", "Time of one Kafka transaction", registry=REGISTRY)
PARKED = Counter("outbox_relay_parked_halves", "Halves moved undecided to the discard topic", registry=REGISTRY)
DISCARDED = Gauge(
    "outbox_relay_discarded",
    "Transactions in the discard topic, by what they lack",
    ["partition", "kind"],
    registry=REGISTRY,
)
