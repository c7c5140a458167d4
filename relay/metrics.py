"""Metrics of the relay; no label ever holds an id or a key. docs/operations/metrics.md has a table of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from outbox._service.contract_monitor import contract_gauge
from outbox.protocol.discard import DiscardReason

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_MESSAGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

REGISTRY = CollectorRegistry()

CONTRACT = contract_gauge(REGISTRY)

RELOADS = Counter(
    "outbox_relay_reloads",
    "Reloads of the allow-list (SIGHUP), by outcome: taken or refused",
    ["outcome"],
    registry=REGISTRY,
)
for _outcome in ("taken", "refused"):
    RELOADS.labels(_outcome)

# What became visible, and what did not.
MESSAGES = Counter("outbox_relay_messages", "Messages made visible on real topics", registry=REGISTRY)
TRANSACTIONS = Counter(
    "outbox_relay_transactions",
    "Transactions that ended: delivered, late (from the discard topic), rolled_back, removed (from the discard topic)",
    ["outcome"],
    registry=REGISTRY,
)
DISCARDS = Counter(
    "outbox_relay_discards",
    "Transactions written to the discard topic, by reason; UNDECIDED: they are parked",
    ["reason"],
    registry=REGISTRY,
)
PARKED = Counter("outbox_relay_parked_halves", "Undecided halves moved to the discard topic", registry=REGISTRY)

# What waits.
PENDING = Gauge(
    "outbox_relay_pending", "Transactions that are undecided, incomplete or held", ["partition"], registry=REGISTRY
)
HELD = Gauge(
    "outbox_relay_held",
    "Committed transactions that wait behind an earlier one of their ordering key",
    ["partition"],
    registry=REGISTRY,
)
DEFERRED = Gauge(
    "outbox_relay_deferred",
    "Halves read but not kept, because their producer group is at its limit",
    ["partition"],
    registry=REGISTRY,
)
WAITING = Gauge(
    "outbox_relay_waiting", "Committed transactions that wait for their real topic", ["partition"], registry=REGISTRY
)
OLDEST_SECONDS = Gauge(
    "outbox_relay_oldest_pending_seconds",
    "Age of the oldest pending transaction, by broker time; 0: none",
    ["partition"],
    registry=REGISTRY,
)
OLDEST_UNDECIDED_SECONDS = Gauge(
    "outbox_relay_oldest_undecided_seconds",
    "Age of the oldest undecided transaction of a producer group, by broker time and by what decides it (row or "
    "listener); only the ten longest-waiting groups, absent below 60 s",
    ["partition", "producer_group", "truth"],
    registry=REGISTRY,
)
LAG = Gauge("outbox_relay_lag", "Halves not read yet", ["partition"], registry=REGISTRY)
DISCARDED = Gauge(
    "outbox_relay_discarded",
    "Transactions in the discard topic, by what they lack: undecided or undeliverable",
    ["partition", "kind"],
    registry=REGISTRY,
)
SERVED = Gauge("outbox_relay_partitions_served", "Half partitions that this process serves", registry=REGISTRY)
NOT_SERVED = Gauge(
    "outbox_relay_partitions_not_served",
    "Half partitions assigned to this process that it cannot take over",
    registry=REGISTRY,
)

HALTED = Gauge(
    "outbox_relay_partitions_halted",
    "Half partitions that are halted until an operator acts: a checkpoint or a record cannot be read",
    registry=REGISTRY,
)

STALLED_SECONDS = Gauge(
    "outbox_relay_stalled_seconds",
    "Time without progress of a half partition that has records to read or transactions to write; 0: it makes "
    "progress or is idle",
    ["partition"],
    registry=REGISTRY,
)

LOST_HALVES = Counter(
    "outbox_relay_lost_halves",
    "Halves deleted from the half topic before they were settled, and skipped because of skip_lost",
    registry=REGISTRY,
)
LOST_OPS = Counter(
    "outbox_relay_lost_ops",
    "Offsets of the op topic deleted before they were read; check-back decides instead",
    registry=REGISTRY,
)

# Table sources.
TABLE_OWNED = Gauge(
    "outbox_relay_table_owned", "Whether this process delivers the table source: 1 or 0", ["source"], registry=REGISTRY
)
TABLE_HALTED = Gauge(
    "outbox_relay_table_halted",
    "Whether the table source is halted until an operator acts: 1 or 0",
    ["source"],
    registry=REGISTRY,
)
TABLE_WAITING = Gauge(
    "outbox_relay_table_waiting",
    "Rows of a table source that wait for a real topic or earlier halves, or behind a row that does",
    ["source"],
    registry=REGISTRY,
)
TABLE_BEHIND_HALVES = Gauge(
    "outbox_relay_table_behind_halves",
    "Transactions of auto mode in a table source that wait until earlier halves of their lanes are settled",
    ["source"],
    registry=REGISTRY,
)
TABLE_ROWS = Gauge(
    "outbox_relay_table_rows",
    "Rows of a table source that are not delivered, estimated by the range of their ids; of a foreign table, up to "
    "100,000",
    ["source"],
    registry=REGISTRY,
)
TABLE_OLDEST_SECONDS = Gauge(
    "outbox_relay_table_oldest_seconds",
    "Age of the oldest row of a table source, by the database's clock; 0: none. Of a foreign table whose order column "
    "has no time: for how long the first row has been the first one",
    ["source"],
    registry=REGISTRY,
)
TABLE_WAKE_UPS = Counter(
    "outbox_relay_table_wake_ups",
    "Times that an idle table source found rows, by what ended its pause: notification, or poll",
    ["source", "cause"],
    registry=REGISTRY,
)
TABLE_SPLIT = Counter(
    "outbox_relay_table_split",
    "Batches of a table source with a part of a local transaction that is too large for one Kafka transaction",
    ["source"],
    registry=REGISTRY,
)

# Decisions and checks.
OPS = Counter(
    "outbox_relay_ops",
    "Op entries that changed a transaction, by kind (commit, rollback, deliver, unknown) and writer",
    ["kind", "source"],
    registry=REGISTRY,
)
EVENTS = Counter(
    "outbox_relay_events",
    "Other events of the ledger, by kind: op_lost, contradiction, op_settled (too late), op_contradicts_settled (too "
    "late, and another decision was applied), op_misplaced (its source does not write to its topic), stray and others",
    ["kind"],
    registry=REGISTRY,
)
CHECKS = Counter("outbox_relay_check_requests", "Check requests sent", registry=REGISTRY)

# Kafka transactions.
COMMIT_SECONDS = Histogram(
    "outbox_relay_commit_seconds",
    "Duration of one Kafka transaction, from its first message to its commit",
    registry=REGISTRY,
    buckets=_SECONDS,
)
BATCH_MESSAGES = Histogram(
    "outbox_relay_batch_messages",
    "Records of one Kafka transaction, including tombstones and discards",
    registry=REGISTRY,
    buckets=_MESSAGES,
)
PRODUCERS = Counter(
    "outbox_relay_producers",
    "Transactional producers created (initial assignment or replacement after an error, R17)",
    registry=REGISTRY,
)
FAILURES = Counter(
    "outbox_relay_failures",
    "Partition workers restarted after a failure, by cause",
    ["cause"],
    registry=REGISTRY,
)
TOPIC_FAILURES = Counter(
    "outbox_relay_topic_failures",
    "Times that a half partition closed a real topic because its records were not acknowledged, by Kafka's error",
    ["topic", "reason"],
    registry=REGISTRY,
)
TIMED_OUT = Counter(
    "outbox_relay_timed_out_batches",
    "Kafka transactions that failed because records were not acknowledged in time; each next one is half as large",
    registry=REGISTRY,
)
HANGING_ENDED = Counter(
    "outbox_relay_leftovers",
    "Partitions of real topics on which an ended Kafka transaction may have left records open, by its outcome",
    ["outcome"],
    registry=REGISTRY,
)
HANGING = Counter(
    "outbox_relay_hanging_transactions",
    "Hanging transactions ended because they blocked a checkpoint, by outcome",
    ["outcome"],
    registry=REGISTRY,
)
RESTORE_SECONDS = Histogram(
    "outbox_relay_restore_seconds",
    "Time from the take-over of a partition until it is served",
    registry=REGISTRY,
    buckets=_SECONDS,
)

# Real topics.
UNDER_MIN_ISR = Gauge(
    "outbox_relay_real_topic_under_min_isr_partitions",
    "Partitions of a real topic with fewer in-sync replicas than min.insync.replicas: nothing is written to the topic",
    ["topic"],
    registry=REGISTRY,
)
LSO_LAG = Gauge(
    "outbox_relay_real_topic_lso_lag",
    "Records between the last stable offset and the high watermark; the maximum over a topic's partitions",
    ["topic"],
    registry=REGISTRY,
)
BLOCKED_SECONDS = Gauge(
    "outbox_relay_real_topic_blocked_seconds",
    "Time that one open transaction has blocked read_committed readers of a topic; 0: none does",
    ["topic"],
    registry=REGISTRY,
)

# From the beginning at 0, so that a rate sees the first one.
for _outcome in ("delivered", "late", "rolled_back", "removed"):
    TRANSACTIONS.labels(_outcome)
for _reason in DiscardReason:
    DISCARDS.labels(_reason)
for _outcome in ("aborted", "committed"):
    HANGING_ENDED.labels(_outcome)
    HANGING.labels(_outcome)
for _kind in ("op_lost", "contradiction", "op_contradicts_settled", "op_misplaced"):
    EVENTS.labels(_kind)
for _cause in ("fenced", "kafka_transaction", "cluster"):
    FAILURES.labels(_cause)

_OF_A_PARTITION = (
    PENDING,
    HELD,
    DEFERRED,
    WAITING,
    OLDEST_SECONDS,
    OLDEST_UNDECIDED_SECONDS,
    LAG,
    DISCARDED,
    STALLED_SECONDS,
)


def forget(partition: int) -> None:
    """Remove the gauges of a partition that this process no longer serves."""
    for gauge in _OF_A_PARTITION:
        gauge.remove_by_labels({"partition": str(partition)})
