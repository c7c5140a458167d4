"""What a channel holds that is not delivered, of halves and of rows alike: the one read model of operators. Pure.

The fields are those of the JSON of `outbox pending`, and `words` has them as text. Times are ms since 1970, ages are
ms, and None is what is not known.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from outbox.operator.state.coverage import Gap
from outbox.operator.state.unsettled_transactions import Gathering, ServiceSum, UnsettledTransaction
from outbox.operator.state.waiting_rows import SourceWaits, TopicState


class Condition(enum.StrEnum):
    """Whether a table source is served."""

    SERVED = "served"
    HALTED = "halted"
    NO_OWNER = "no owner"
    NO_KAFKA = "no Kafka"
    READ_ONLY = "read-only"
    UNREACHABLE = "unreachable"


@dataclass
class SourceState:
    """What was seen of one table source; nothing of it is a guess."""

    source: str
    table: str
    foreign: bool = False  # whether it is a foreign table, whose rows are not counted
    condition: Condition = Condition.UNREACHABLE
    why: str | None = None  # why it is not served, or what could not be read
    owner_pid: int | None = None
    owner_address: str | None = None
    rows: int | None = None  # rows of the table, at most so many as are counted
    more_rows: bool = False
    age_ms: int | None = None
    batch: int | None = None  # the newest batch that the database names; None: it was never served
    delivered: int | None = None  # the newest one that is delivered according to the database
    kafka_batch: int | None = None
    kafka_read: bool = False
    in_delivery: int = 0  # rows of the newest batch that are in the table
    later: int = 0  # messages that wait for their time; counting stops at 10,000
    overdue: int = 0  # of those, the ones that a relay should have moved into the table
    waiting: list[SourceWaits] = field(default_factory=list)
    discarded: Mapping[str, int] = field(default_factory=dict)  # rows by reason
    not_read: list[str] = field(default_factory=list)

    @property
    def is_unread(self) -> bool:
        return bool(self.not_read) or self.condition is Condition.UNREACHABLE


@dataclass
class ChannelState:
    """What waits in a channel: transactions of halves, and rows by table source."""

    channel: str
    now_ms: int
    tables_only: bool = False  # whether it has no half mode
    sums: list[ServiceSum] = field(default_factory=list)
    sums_not_listed: int = 0
    transactions: list[UnsettledTransaction] = field(default_factory=list)
    refusing: list[TopicState] = field(default_factory=list)  # real topics of those listed that take no messages
    not_listed: int = 0
    malformed_halves: int = 0
    discarded: Mapping[str, int] = field(default_factory=dict)  # transactions of halves that are discarded, by reason
    not_read: list[Gap] = field(default_factory=list)
    members: Mapping[str, int | None] = field(default_factory=dict)  # that serve it, by service; None: not known
    tables: list[SourceState] = field(default_factory=list)
    silence: Exception | None = field(default=None, repr=False)  # why Kafka was not asked; None: it was

    def take(self, found: Gathering, limit: int) -> None:
        """Take what was gathered of halves, up to a limit: the largest sums, and the oldest transactions."""
        sums = sorted(found.sums.values(), key=lambda one: (-one.undecided - one.decided, one.service))
        self.sums, self.sums_not_listed = sums[:limit], len(sums[limit:])
        self.discarded = found.discarded
        self.transactions = found.oldest()[:limit]
        self.not_listed = sum(one.undecided + one.decided for one in sums) - len(self.transactions)
        self.malformed_halves = found.malformed
