"""Metrics of the relay; no label ever holds an id or a key. docs/operations/metrics.md has a table of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from outbox._service.channels.channel_metrics import (
    CHANNEL,
    ChannelCounter,
    ChannelGauge,
    ChannelHistogram,
    ready_gauge,
    restarts_counter,
)
from outbox._service.contract_monitor import contract_gauge
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind, OpSource

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DELIVERY_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
_MESSAGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

REGISTRY = CollectorRegistry()

CONTRACT = contract_gauge(REGISTRY)

RELOADS = ChannelCounter(
    "outbox_relay_reloads",
    "Reloads of the allow-list (SIGHUP), by outcome: taken or refused",
    [CHANNEL, "outcome"],
    registry=REGISTRY,
)
READY = ready_gauge(REGISTRY, "relay")
RESTARTS = restarts_counter(REGISTRY, "relay")

# What became visible, and what did not.
MESSAGES = ChannelCounter("outbox_relay_messages", "Messages made visible on real topics", [CHANNEL], registry=REGISTRY)
DELIVERY_SECONDS = ChannelHistogram(
    "outbox_relay_delivery_seconds",
    "Time until a message is visible, by producer group: from the append of its decision, by the relay's clock; of a "
    "row from the start of its local transaction, by the database's; of a foreign row from its last read. (others): "
    "groups beyond the first 100",
    [CHANNEL, "group"],
    registry=REGISTRY,
    buckets=_DELIVERY_SECONDS,
)
TRANSACTIONS = ChannelCounter(
    "outbox_relay_transactions",
    "Transactions that ended: delivered, late (from the discard topic), rolled_back, removed (from the discard topic)",
    [CHANNEL, "outcome"],
    registry=REGISTRY,
)
DISCARDS = ChannelCounter(
    "outbox_relay_discards",
    "Transactions written to the discard topic, or to the table of discarded rows, by reason; UNDECIDED: they are "
    "parked",
    [CHANNEL, "reason"],
    registry=REGISTRY,
)
PARKED = ChannelCounter(
    "outbox_relay_parked_halves", "Undecided halves moved to the discard topic", [CHANNEL], registry=REGISTRY
)

# What waits.
PENDING = ChannelGauge(
    "outbox_relay_pending",
    "Transactions that are undecided, incomplete or held",
    [CHANNEL, "partition"],
    registry=REGISTRY,
)
HELD = ChannelGauge(
    "outbox_relay_held",
    "Committed transactions that wait behind an earlier one of their ordering key",
    [CHANNEL, "partition"],
    registry=REGISTRY,
)
DEFERRED = ChannelGauge(
    "outbox_relay_deferred",
    "Halves read but not kept, because their producer group is at its limit",
    [CHANNEL, "partition"],
    registry=REGISTRY,
)
WAITING = ChannelGauge(
    "outbox_relay_waiting",
    "Committed transactions that wait for their real topic",
    [CHANNEL, "partition"],
    registry=REGISTRY,
)
OLDEST_SECONDS = ChannelGauge(
    "outbox_relay_oldest_pending_seconds",
    "Age of the oldest pending transaction, by broker time; 0: none",
    [CHANNEL, "partition"],
    registry=REGISTRY,
)
OLDEST_UNDECIDED_SECONDS = ChannelGauge(
    "outbox_relay_oldest_undecided_seconds",
    "Age of the oldest undecided transaction of a producer group, by broker time and by what decides it (row or "
    "listener); only the ten longest-waiting groups, absent below 60 s",
    [CHANNEL, "partition", "producer_group", "truth"],
    registry=REGISTRY,
)
LAG = ChannelGauge("outbox_relay_lag", "Halves not read yet", [CHANNEL, "partition"], registry=REGISTRY)
DISCARDED = ChannelGauge(
    "outbox_relay_discarded",
    "Transactions in the discard topic, by what they lack: undecided or undeliverable. Discarded rows are in "
    "outbox_relay_table_discarded",
    [CHANNEL, "partition", "kind"],
    registry=REGISTRY,
)
SERVED = ChannelGauge(
    "outbox_relay_partitions_served", "Half partitions that this process serves", [CHANNEL], registry=REGISTRY
)
NOT_SERVED = ChannelGauge(
    "outbox_relay_partitions_not_served",
    "Half partitions assigned to this process that it cannot take over",
    [CHANNEL],
    registry=REGISTRY,
)

HALTED = ChannelGauge(
    "outbox_relay_partitions_halted",
    "Half partitions that are halted until an operator acts: a checkpoint or a record cannot be read",
    [CHANNEL],
    registry=REGISTRY,
)

STALLED_SECONDS = ChannelGauge(
    "outbox_relay_stalled_seconds",
    "Time without progress of a half partition that has records to read or transactions to write; 0: it makes "
    "progress or is idle",
    [CHANNEL, "partition"],
    registry=REGISTRY,
)

LONGEST_CALL = ChannelGauge(
    "outbox_relay_longest_call_seconds",
    "Time that the longest call to Kafka has taken by now without any progress",
    [CHANNEL],
    registry=REGISTRY,
)

LOST_HALVES = ChannelCounter(
    "outbox_relay_lost_halves",
    "Halves deleted from the half topic before they were settled, and skipped because of skip_lost",
    [CHANNEL],
    registry=REGISTRY,
)
LOST_OPS = ChannelCounter(
    "outbox_relay_lost_ops",
    "Offsets of the op topic deleted before they were read; check-back decides instead",
    [CHANNEL],
    registry=REGISTRY,
)

# Table sources.
TABLE_OWNED = ChannelGauge(
    "outbox_relay_table_owned",
    "Whether this process delivers the table source: 1 or 0",
    [CHANNEL, "source"],
    registry=REGISTRY,
)
TABLE_HALTED = ChannelGauge(
    "outbox_relay_table_halted",
    "Whether the table source is halted until an operator acts: 1 or 0",
    [CHANNEL, "source"],
    registry=REGISTRY,
)
TABLE_WAITING = ChannelGauge(
    "outbox_relay_table_waiting",
    "Rows of a table source that wait for a real topic or earlier halves, or behind a row that does",
    [CHANNEL, "source"],
    registry=REGISTRY,
)
TABLE_ROWS = ChannelGauge(
    "outbox_relay_table_rows",
    "Rows of a table source that are not delivered, estimated by the range of their ids; of a foreign table, up to "
    "100,000",
    [CHANNEL, "source"],
    registry=REGISTRY,
)
TABLE_DISCARDED = ChannelGauge(
    "outbox_relay_table_discarded",
    "Discarded rows of a table source that are neither moved back nor dropped, up to 10,000",
    [CHANNEL, "source"],
    registry=REGISTRY,
)
TABLE_OLDEST_SECONDS = ChannelGauge(
    "outbox_relay_table_oldest_seconds",
    "Age of the oldest row of a table source, by the database's clock; 0: none. Of a foreign table whose order column "
    "has no time: for how long the first row has been the first one",
    [CHANNEL, "source"],
    registry=REGISTRY,
)
WAKE_UP_CAUSES = POLL, NOTIFICATION = "poll", "notification"
TABLE_WAKE_UPS = ChannelCounter(
    "outbox_relay_table_wake_ups",
    "Times that an idle table source found rows, by what ended its pause: notification, or poll",
    [CHANNEL, "source", "cause"],
    registry=REGISTRY,
)
TABLE_SPLIT = ChannelCounter(
    "outbox_relay_table_split",
    "Batches of a table source with a part of a local transaction that is too large for one Kafka transaction",
    [CHANNEL, "source"],
    registry=REGISTRY,
)
TABLE_UPKEEP_FAILURES = ChannelCounter(
    "outbox_relay_table_upkeep_failures",
    "Times that upkeep of a table source failed, which stops no delivery: figures, or purge of evidence",
    [CHANNEL, "source", "work"],
    registry=REGISTRY,
)

# Decisions and checks.
OPS = ChannelCounter(
    "outbox_relay_ops",
    "Op entries that changed a transaction, by kind (commit, rollback, deliver, unknown) and writer",
    [CHANNEL, "kind", "source"],
    registry=REGISTRY,
)
EVENTS = ChannelCounter(
    "outbox_relay_events",
    "Other events of the ledger, by kind: op_lost, contradiction, op_settled (too late), op_contradicts_settled (too "
    "late, and another decision was applied), op_misplaced (its source does not write to its topic), stray and others",
    [CHANNEL, "kind"],
    registry=REGISTRY,
)
CHECKS = ChannelCounter("outbox_relay_check_requests", "Check requests sent", [CHANNEL], registry=REGISTRY)

# Kafka transactions.
COMMIT_SECONDS = ChannelHistogram(
    "outbox_relay_commit_seconds",
    "Duration of one Kafka transaction, from its first message to its commit",
    [CHANNEL],
    registry=REGISTRY,
    buckets=_SECONDS,
)
BATCH_MESSAGES = ChannelHistogram(
    "outbox_relay_batch_messages",
    "Records of one Kafka transaction, including tombstones and discards",
    [CHANNEL],
    registry=REGISTRY,
    buckets=_MESSAGES,
)
PRODUCERS = ChannelCounter(
    "outbox_relay_producers",
    "Transactional producers created (initial assignment or replacement after an error, R17)",
    [CHANNEL],
    registry=REGISTRY,
)
FAILURES = ChannelCounter(
    "outbox_relay_failures",
    "Partition workers restarted after a failure, by cause",
    [CHANNEL, "cause"],
    registry=REGISTRY,
)
TOPIC_FAILURES = ChannelCounter(
    "outbox_relay_topic_failures",
    "Times that a half partition closed a real topic because its records were not acknowledged, by Kafka's error",
    [CHANNEL, "topic", "reason"],
    registry=REGISTRY,
)
TIMED_OUT = ChannelCounter(
    "outbox_relay_timed_out_batches",
    "Kafka transactions that failed because records were not acknowledged in time; each next one is half as large",
    [CHANNEL],
    registry=REGISTRY,
)
HANGING_ENDED = ChannelCounter(
    "outbox_relay_leftovers",
    "Partitions of real topics on which an ended Kafka transaction may have left records open, by its outcome",
    [CHANNEL, "outcome"],
    registry=REGISTRY,
)
HANGING = ChannelCounter(
    "outbox_relay_hanging_transactions",
    "Hanging transactions ended because they blocked a checkpoint, by outcome",
    [CHANNEL, "outcome"],
    registry=REGISTRY,
)
RESTORE_SECONDS = ChannelHistogram(
    "outbox_relay_restore_seconds",
    "Time from the take-over of a partition until it is served",
    [CHANNEL],
    registry=REGISTRY,
    buckets=_SECONDS,
)

# Real topics.
UNDER_MIN_ISR = ChannelGauge(
    "outbox_relay_real_topic_under_min_isr_partitions",
    "Partitions of a real topic with fewer in-sync replicas than min.insync.replicas: nothing is written to the topic",
    [CHANNEL, "topic"],
    registry=REGISTRY,
)
LSO_LAG = ChannelGauge(
    "outbox_relay_real_topic_lso_lag",
    "Records between the last stable offset and the high watermark; the maximum over a topic's partitions",
    [CHANNEL, "topic"],
    registry=REGISTRY,
)
BLOCKED_SECONDS = ChannelGauge(
    "outbox_relay_real_topic_blocked_seconds",
    "Time that one open transaction has blocked read_committed readers of a topic; 0: none does",
    [CHANNEL, "topic"],
    registry=REGISTRY,
)

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


_WITHOUT_LABELS = (
    LONGEST_CALL,
    MESSAGES,
    PARKED,
    SERVED,
    NOT_SERVED,
    HALTED,
    LOST_HALVES,
    LOST_OPS,
    CHECKS,
    COMMIT_SECONDS,
    BATCH_MESSAGES,
    PRODUCERS,
    TIMED_OUT,
    RESTORE_SECONDS,
)
_EVENTS = (
    *("op_lost", "contradiction", "op_settled", "op_contradicts_settled", "op_misplaced", "op_malformed"),
    *("op_foreign", "op_passed", "op_dropped", "op_reread", "half_reread", "half_copy", "stray", "parked"),
)


def begin() -> None:
    """Show the metrics of this thread's channel from the beginning at 0, so that a rate includes the first event."""
    for metric in _WITHOUT_LABELS:
        metric.labels()
    for outcome in ("taken", "refused"):
        RELOADS.labels(outcome)
    for outcome in ("delivered", "late", "rolled_back", "removed"):
        TRANSACTIONS.labels(outcome)
    for reason in DiscardReason:
        DISCARDS.labels(reason)
    for outcome in ("aborted", "committed"):
        HANGING_ENDED.labels(outcome)
        HANGING.labels(outcome)
    for kind in _EVENTS:
        EVENTS.labels(kind)
    for decision in OpKind:
        for source in OpSource:
            OPS.labels(decision.name.lower(), source)
    for cause in ("fenced", "kafka_transaction", "cluster", "bug"):
        FAILURES.labels(cause)


def begin_table(source: str) -> None:
    """Show the metrics of a table source from the beginning at 0."""
    TABLE_OWNED.labels(source).set(0)
    TABLE_HALTED.labels(source).set(0)
    TABLE_SPLIT.labels(source)
    for work in ("figures", "purge"):
        TABLE_UPKEEP_FAILURES.labels(source, work)
    for cause in WAKE_UP_CAUSES:
        TABLE_WAKE_UPS.labels(source, cause)


def end() -> None:
    """Show that nothing of this thread's channel is served any more."""
    for metric in (SERVED, NOT_SERVED, HALTED):
        metric.labels().set(0)
    for gauge in (*_OF_A_PARTITION, UNDER_MIN_ISR, LSO_LAG, BLOCKED_SECONDS):
        gauge.remove_by_labels({})


def forget(partition: int) -> None:
    """Remove the gauges of a partition that this process no longer serves."""
    for gauge in _OF_A_PARTITION:
        gauge.remove_by_labels({"partition": str(partition)})
