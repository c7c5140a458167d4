"""Metrics of the checker; no label ever holds an id."""

from collections.abc import Mapping

from checker.rules.settlement import Delay
from checker.rules.verdicts import Verdict
from outbox._service.channels.channel_metrics import MetricTable

TABLE = MetricTable("checker")

VERDICTS = TABLE.counter(
    "outbox_checker_verdicts",
    "Verdicts, by kind and database; UNMAPPED ones have none",
    verdict=[verdict for verdict in Verdict if verdict is not Verdict.UNMAPPED],
    database=(),
)
DROPPED = TABLE.counter(
    "outbox_checker_dropped",
    "Check requests not looked at: stale (10 minutes older than the newest of their partition) and newer (of a newer "
    "format), with which the checker is not ready, malformed, unreadable (Kafka's client cannot unpack them; one for "
    "each jump to the log end), or queue_full (too many wait for one database)",
    reason=("stale", "malformed", "newer", "unreadable", "queue_full"),
)
UNDECIDED, PREPARED = OLDEST = "undecided", "prepared"
OLDEST_SECONDS = TABLE.gauge(
    "outbox_checker_oldest_seconds",
    "Age of the oldest transaction that is asked about and not decided, by the clock in its id, and of the oldest "
    "prepared one; 0: none",
    database=(),
    kind=OLDEST,
)
DATABASE_UP = TABLE.gauge(
    "outbox_checker_database_up",
    "1: the database answered at the last look, and its tables, rights and settings are right",
    database=(),
)
BREAKERS_OPEN = TABLE.gauge(
    "outbox_checker_breakers_open",
    "Services that are not fenced, because they commit nothing in this database",
    database=(),
)
UPKEEP_COMPLETED = TABLE.gauge(
    "outbox_checker_upkeep_completed_seconds",
    "When a walk over the callback table last judged all rows, seconds since 1970; at first, the start of the process",
    database=(),
)
UNDELIVERED = TABLE.gauge(
    "outbox_checker_undelivered",
    "Committed transactions older than settlement_max_age_ms that are not delivered, by what delays them",
    database=(),
    kind=Delay,
)


def open_channel() -> None:
    """Show the metrics of this thread's channel from the beginning at 0, so that a rate includes the first event."""
    TABLE.show()
    VERDICTS.labels(Verdict.UNMAPPED, "")


def know(database: str) -> None:
    """Create the metrics of a database, at 0."""
    TABLE.show(database=database)
    for gauge in (DATABASE_UP, BREAKERS_OPEN):
        gauge.labels(database)
    for kind in OLDEST:
        OLDEST_SECONDS.labels(database, kind)


def begin(database: str) -> None:
    """Show the figures of a database's upkeep from the beginning: its first walk is due."""
    undelivered(database, dict.fromkeys(Delay, 0))
    UPKEEP_COMPLETED.labels(database).set_to_current_time()


def undelivered(database: str, found: Mapping[Delay, int]) -> None:
    """Record what a walk found that is not delivered."""
    for kind, count in found.items():
        UNDELIVERED.labels(database, kind).set(count)
