"""What a channel holds that is not delivered, of halves and of rows alike: the one read model of operators. Pure.

Each value is written once, here: `dataclasses.asdict` makes the JSON of `outbox pending`, and its text is made from the
same fields. Times are ms since 1970, ages are ms, and None is what is not known.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from outbox.operator.state.unsettled_transactions import Gathering, UnsettledTransaction
from outbox.operator.state.waiting_rows import REFUSALS, Waits


@dataclass(frozen=True, slots=True)
class Gap:
    """What was not read: place and reason.

    Args:
        place: Topic, partition and offsets; or what else was not asked.
        why: One sentence.
    """

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class GroupSum:
    """What is unsettled of a producer group in a half partition."""

    group: str
    half_partition: int
    undecided: int
    decided: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class RowSeen:
    """What a look into the database of a transaction showed.

    Args:
        database: Its name in the settings; None: no database is configured.
        row: State of the transaction there, or why it is not known.
        holder_pid: Process id of the backend whose local transaction is open.
    """

    database: str | None = None
    row: str | None = None
    holder_pid: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingTransaction:
    """A transaction of halves that is not settled; see `UnsettledTransaction` for its fields.

    Args:
        behind: Unsettled transactions of its group and ordering key that come after it.
        database: See `RowSeen`; None also if nobody looked.
        row: Likewise.
        holder_pid: Likewise.
    """

    transaction: str
    group: str
    truth: str
    half_partition: int
    first_offset: int
    last_offset: int
    messages: int
    targets: list[str]
    appended_ms: int
    age_ms: int
    parked: bool
    decision: str | None
    decided_by: str | None
    decided_ms: int | None
    op_offset: int | None
    disputed: bool
    checks: int | None
    last_asked_ms: int | None
    behind: int
    database: str | None
    row: str | None
    holder_pid: int | None


class Condition(enum.StrEnum):
    """Whether a table source is served."""

    SERVED = "served"
    HALTED = "halted"
    NO_OWNER = "no owner"
    NO_KAFKA = "no Kafka"
    READ_ONLY = "read-only"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class SourceWaits:
    """Rows of a table source that wait for one topic and one reason."""

    topic: str
    reason: Waits
    detail: str
    rows: int
    age_ms: int
    groups: list[str]

    @property
    def is_refused(self) -> bool:
        """Whether the topic itself refuses the rows."""
        return self.reason in REFUSALS


@dataclass(frozen=True, slots=True)
class DiscardedRows:
    """Discarded rows with one reason, and when the first was discarded."""

    reason: str
    rows: int
    discarded_ms: int


@dataclass
class SourceState:
    """What was seen of one table source; nothing of it is a guess.

    Args:
        source: Name of the source.
        table: Its message table, or foreign table.
        foreign: Whether it is a foreign table, whose rows are not counted.
        condition: Whether it is served.
        why: Why it is not, or what could not be read.
        owner_pid: The database session that owns it.
        owner_address: Address of its client.
        rows: Rows of the table, at most so many as are counted.
        more_rows: Whether there may be more.
        age_ms: Age of the oldest row.
        batch: The newest batch that the database names; None: it was never served.
        delivered: The newest one that the database knows to be delivered.
        kafka_batch: The batch that Kafka has.
        kafka_read: Whether Kafka's progress was read.
        in_delivery: Rows of the newest batch that are in the table.
        waiting: Rows by topic and reason.
        discarded: Discarded rows by reason.
        not_read: What could not be looked at, and why.
    """

    source: str
    table: str
    foreign: bool = False
    condition: Condition = Condition.UNREACHABLE
    why: str | None = None
    owner_pid: int | None = None
    owner_address: str | None = None
    rows: int | None = None
    more_rows: bool = False
    age_ms: int | None = None
    batch: int | None = None
    delivered: int | None = None
    kafka_batch: int | None = None
    kafka_read: bool = False
    in_delivery: int = 0
    waiting: list[SourceWaits] = field(default_factory=list)
    discarded: list[DiscardedRows] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)

    @property
    def is_unread(self) -> bool:
        """Whether something of it could not be read."""
        return bool(self.not_read) or self.condition is Condition.UNREACHABLE


@dataclass
class ChannelState:
    """What waits in a channel: transactions of halves, and rows by table source.

    Args:
        channel: Name of the channel.
        now_ms: When it was looked at.
        sums: How much is unsettled, by group and half partition.
        transactions: The oldest unsettled transactions of halves.
        not_listed: How many more there are.
        malformed_halves: How many halves cannot be parsed.
        not_read: What was not read.
        members: How many relays and checkers serve it, by service; None: not known.
        tables: Its table sources.
    """

    channel: str
    now_ms: int
    sums: list[GroupSum] = field(default_factory=list)
    transactions: list[WaitingTransaction] = field(default_factory=list)
    not_listed: int = 0
    malformed_halves: int = 0
    not_read: list[Gap] = field(default_factory=list)
    members: Mapping[str, int | None] = field(default_factory=dict)
    tables: list[SourceState] = field(default_factory=list)

    def take(self, found: Gathering, limit: int, rows: Mapping[str, RowSeen]) -> None:
        """Take what was gathered of halves: the sums, and so many transactions, the oldest first."""
        self.sums = [
            GroupSum(*place, one.undecided, one.decided, one.oldest) for place, one in sorted(found.sums.items())
        ]
        shown = found.oldest()[:limit]
        self.transactions = [self._waiting(one, found.behind(one), rows.get(one.id, RowSeen())) for one in shown]
        self.not_listed = found.total() - len(shown)
        self.malformed_halves = found.malformed

    def _waiting(self, one: UnsettledTransaction, behind: int, seen: RowSeen) -> WaitingTransaction:
        decision = one.decision
        return WaitingTransaction(
            transaction=one.id,
            group=one.group,
            truth=str(one.truth),
            half_partition=one.partition,
            first_offset=one.first_offset,
            last_offset=one.last_offset,
            messages=len(one.offsets),
            targets=sorted(one.targets),
            appended_ms=one.first_append_time,
            age_ms=max(self.now_ms - one.first_append_time, 0),
            parked=one.parked,
            decision=decision.kind.name if decision else None,
            decided_by=str(decision.source) if decision else None,
            decided_ms=decision.append_time if decision else None,
            op_offset=decision.offset if decision else None,
            disputed=one.disputed,
            checks=one.checks or None,
            last_asked_ms=one.last_asked or None,
            behind=behind,
            database=seen.database,
            row=seen.row,
            holder_pid=seen.holder_pid,
        )
