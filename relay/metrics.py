"""Metrics of the relay; no label ever holds an id or a key. docs/operations/metrics.md has a table of them."""

from outbox._service.channels.channel_metrics import MetricTable
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind, OpSource

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DELIVERY_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
_EVENTS = (
    *("op_lost", "contradiction", "op_settled", "op_contradicts_settled", "op_misplaced", "op_malformed"),
    *("op_foreign", "op_passed", "op_dropped", "op_reread", "half_reread", "half_copy", "stray", "parked"),
    *("half_gone", "op_gone", "expired"),
)
SERVED, NOT_SERVED, HALTED = PARTITION_STATES = "served", "not_served", "halted"
OWNED, SOURCE_HALTED = SOURCE_STATES = "owned", "halted"
WAITING_ROWS, *SEEN_ROWS = ROW_STATES = "waiting", "undelivered", "discarded", "expiring", "dead"
ROW, SNAPSHOT = OLDEST = "row", "snapshot"
OTHERS = "(others)"
"""Label of services beyond those that are measured apart, and of what names none; no service can have this name."""

TABLE = MetricTable("relay")

# What became visible, and what did not.
DELIVERY_SECONDS = TABLE.histogram(
    "outbox_relay_delivery_seconds",
    "Time until a message is visible: from the append of its decision, by the relay's clock; of a row from the start "
    "of its local transaction, by the database's; of a foreign row from its last read. (others): beyond 100 services",
    _DELIVERY_SECONDS,
    service=(),
)
TRANSACTIONS = TABLE.counter(
    "outbox_relay_transactions",
    "Transactions that ended; late: delivered from the discard topic, removed: from there, also by age",
    outcome=("delivered", "late", "rolled_back", "removed"),
)
DISCARDS = TABLE.counter(
    "outbox_relay_discards",
    "Transactions written to the discard topic or the table of discarded rows; UNDECIDED: parked",
    reason=DiscardReason,
    service=(),
)

# What waits in a half partition, and how it is served.
PENDING = TABLE.gauge("outbox_relay_pending", "Transactions that are undecided, incomplete or held", partition=())
DEFERRED = TABLE.gauge(
    "outbox_relay_deferred", "Halves read but not kept, because their service is at its limit", partition=()
)
WAITING = TABLE.gauge("outbox_relay_waiting", "Committed transactions that wait for their real topic", partition=())
OLDEST_SECONDS = TABLE.gauge(
    "outbox_relay_oldest_pending_seconds",
    "Age of the oldest pending transaction, by broker time; 0: none",
    partition=(),
)
OLDEST_UNDECIDED_SECONDS = TABLE.gauge(
    "outbox_relay_oldest_undecided_seconds",
    "Age of a service's oldest undecided transaction, by broker time; of the ten that wait longest, from 60 s on",
    partition=(),
    service=(),
    truth=(),
)
LAG = TABLE.gauge("outbox_relay_lag", "Halves not read yet", partition=())
DISCARDED = TABLE.gauge(
    "outbox_relay_discarded",
    "Transactions in the discard topic: undecided or undeliverable; expiring: of the latter, deleted in seven days",
    partition=(),
    kind=(),
)
STALLED_SECONDS = TABLE.gauge(
    "outbox_relay_stalled_seconds",
    "Time without progress of a half partition that has something to read or write",
    partition=(),
)
PARTITIONS = TABLE.gauge(
    "outbox_relay_partitions",
    "Half partitions assigned to this process: served, not_served (it cannot take them over), or halted",
    state=PARTITION_STATES,
)

# Table sources.
TABLE_SOURCES = TABLE.gauge(
    "outbox_relay_table_sources",
    "Table sources: whether this process delivers it (owned), and whether it is halted; 1 or 0",
    source=(),
    state=SOURCE_STATES,
)
TABLE_ROWS = TABLE.gauge(
    "outbox_relay_table_rows",
    "Rows of a table source: undelivered (estimated by the range of their ids; of a foreign table, up to 100,000), "
    "waiting (for a real topic, or behind a row that does), discarded (that are there, up to 10,000), expiring (of "
    "these, deleted in seven days), dead (not vacuumed)",
    source=(),
    state=ROW_STATES,
)
TABLE_OLDEST_SECONDS = TABLE.gauge(
    "outbox_relay_table_oldest_seconds",
    "Age of a table source's oldest row, or time since a message that waits for its time was due, by the database's "
    "clock; 0: none. Of a foreign table without times in its order: how long the first row has been the first one. It "
    "grows while not looked at. snapshot: how long one has kept dead rows",
    source=(),
    kind=OLDEST,
)
TABLE_UPKEEP_FAILURES = TABLE.counter(
    "outbox_relay_table_upkeep_failures",
    "Times that upkeep of a table source failed, which stops no delivery; purge: of evidence, expire: of discarded "
    "messages, wake: of messages whose time has come",
    source=(),
    work=("figures", "purge", "expire", "wake"),
)

# Decisions and checks.
OPS = TABLE.counter(
    "outbox_relay_ops",
    "Op entries that changed a transaction, by kind and writer",
    kind=[kind.name.lower() for kind in OpKind],
    source=OpSource,
)
EVENTS = TABLE.counter(
    "outbox_relay_events",
    "Other events: op_lost, contradiction, op_settled (too late), op_contradicts_settled (too late, and another "
    "decision was applied), op_misplaced (its source does not write to its topic), half_gone (skipped because of "
    "skip_lost), op_gone (deleted before it was read), expired (discarded messages, deleted by age) and others",
    kind=_EVENTS,
)
CHECKS = TABLE.counter("outbox_relay_check_requests", "Check requests sent")

# Kafka transactions and real topics.
COMMIT_SECONDS = TABLE.histogram(
    "outbox_relay_commit_seconds", "Duration of one Kafka transaction, from its first message to its commit", _SECONDS
)
FAILURES = TABLE.counter(
    "outbox_relay_failures",
    "Partition workers restarted after a failure, by cause",
    cause=("fenced", "kafka_transaction", "cluster", "bug"),
)
UNDER_MIN_ISR = TABLE.gauge(
    "outbox_relay_real_topic_under_min_isr_partitions",
    "Partitions of a real topic below min.insync.replicas: nothing is written to it; absent: none",
    topic=(),
)
BLOCKED_SECONDS = TABLE.gauge(
    "outbox_relay_real_topic_blocked_seconds",
    "Time that one open transaction has blocked read_committed readers of a topic; absent: none",
    topic=(),
)


def begin() -> None:
    """Show the metrics of this thread's channel from the beginning at 0, so that a rate includes the first event."""
    TABLE.show()
    show_discards(OTHERS)


def show_discards(service: str) -> None:
    """Show the discards of a service from the beginning at 0."""
    for reason in DiscardReason:
        DISCARDS.labels(reason, service)


def show_partitions() -> None:
    """Show that no half partition is served, yet or any more."""
    for state in PARTITION_STATES:
        PARTITIONS.labels(state).set(0)


def begin_table(source: str) -> None:
    """Show the metrics of a table source from the beginning at 0."""
    TABLE.show(source=source)
    for state in SOURCE_STATES:
        TABLE_SOURCES.labels(source, state).set(0)


def end() -> None:
    """Show that nothing of this thread's channel is served any more."""
    for gauge in (*TABLE.of("partition"), *TABLE.of("topic")):
        gauge.remove_by_labels({})


def forget(partition: int) -> None:
    """Remove the gauges of a partition that this process no longer serves."""
    for gauge in TABLE.of("partition"):
        gauge.remove_by_labels({"partition": str(partition)})
