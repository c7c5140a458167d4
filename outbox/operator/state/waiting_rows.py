"""Why rows of a message table wait, as far as real topics and the order of rows show it. Pure."""

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox._rules.row_order import OrderingKey, behind_those


class Waits(enum.StrEnum):
    """Why a row waits. The first four are discard reasons, too: what they describe may pass."""

    TOPIC_MISSING = "TOPIC_MISSING"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    TOPIC_UNAVAILABLE = "TOPIC_UNAVAILABLE"
    PARTITION_OUT_OF_RANGE = "PARTITION_OUT_OF_RANGE"
    SAME_TRANSACTION = "SAME_TRANSACTION"
    SAME_KEY = "SAME_KEY"
    NOT_KNOWN = "NOT_KNOWN"
    NEXT = "NEXT"


FIXES = {  # what to do about a real topic that refuses messages; they are discarded after `topic_missing_max_age_ms`
    Waits.TOPIC_MISSING: "create the topic, or correct its name in the application; what waits goes by itself then",
    Waits.NOT_AUTHORIZED: "grant the right to the relay; if this client is not the relay's, run this as the relay",
    Waits.TOPIC_UNAVAILABLE: "bring the brokers of the topic back; if all are there, see docs/operations/recovery.md",
    Waits.PARTITION_OUT_OF_RANGE: "add partitions to the topic, or correct the partition that the application names",
}

_Local = tuple[int, int, str]  # local transaction, by xid and start, and service: what is delivered together
OVERDUE = "start a relay; if one runs, its log has why it cannot (work=wake)"  # of messages that are due and not moved

DETAILS = {
    Waits.SAME_TRANSACTION: "another message of its transaction waits",
    Waits.SAME_KEY: "an earlier message with a key of its transaction waits",
    Waits.NOT_KNOWN: "its topic could not be looked at",
    Waits.NEXT: "nothing of its topic or order keeps it",
}


class TopicRows(NamedTuple):
    """Rows for one topic."""

    topic: str
    rows: int
    partition: int  # the highest partition that one names; -1: none names one
    started_us: int  # start of the oldest one's local transaction, us since 1970


class WaitingRow(NamedTuple):
    """A row without its value."""

    xid: int
    id: int
    started_us: int
    service: str
    topic: str
    partition: int
    key: bytes | None


@dataclass(frozen=True, slots=True)
class TopicState:
    """What keeps a real topic from taking messages."""

    topic: str
    partitions: int = field(repr=False)  # not for programs
    reason: Waits = Waits.NEXT
    detail: str = ""

    def refuses(self, partition: int) -> tuple[Waits, str] | None:
        """Return why it takes no message to a partition, or to any (-1); None if it does."""
        if self.reason is not Waits.NEXT:
            return self.reason, self.detail
        if partition >= self.partitions:
            return Waits.PARTITION_OUT_OF_RANGE, f"the topic has {self.partitions} partitions, a message names another"
        return None


class SourceWaits(NamedTuple):
    """Rows of a table source that wait for one topic and one reason; without services they were not looked at."""

    topic: str
    reason: Waits
    detail: str
    rows: int
    age_ms: int
    services: Sequence[str] = ()

    @property
    def is_refused(self) -> bool:
        return self.reason in FIXES


def is_any_closed(topics: Iterable[TopicRows], states: Mapping[str, TopicState]) -> bool:
    return any(states[one.topic].refuses(one.partition) for one in topics)


def age_of(started_us: int, now_ms: int) -> int:
    """Return how old a row is, in ms, by the start of its local transaction, us since 1970."""
    return max(now_ms - started_us // 1_000, 0)


def all_of(why: Waits, topics: Iterable[TopicRows], now_ms: int) -> list[SourceWaits]:
    return [SourceWaits(one.topic, why, DETAILS[why], one.rows, age_of(one.started_us, now_ms)) for one in topics]


def reasons(rows: Sequence[WaitingRow], states: Mapping[str, TopicState], now_ms: int) -> list[SourceWaits]:
    """Return for how many rows of each topic which reason holds, the oldest first, by the first rows of a table."""
    keyed: defaultdict[_Local, list[tuple[OrderingKey, int]]] = defaultdict(list)
    refused: dict[int, tuple[Waits, str]] = {}
    for row in rows:
        of_it = keyed[row.xid, row.started_us, row.service]
        if row.key is not None:
            of_it.append(((row.service, row.key), row.id))
        if (why := states[row.topic].refuses(row.partition)) is not None:
            refused[row.id] = why
    closed = {(row.xid, row.started_us, row.service) for row in rows if row.id in refused}
    behind = behind_those(keyed.keys(), closed, keyed.__getitem__)
    groups: defaultdict[tuple[str, Waits, str], list[WaitingRow]] = defaultdict(list)
    for row in rows:
        which = (row.xid, row.started_us, row.service)
        order = Waits.SAME_TRANSACTION if which in closed else Waits.SAME_KEY if which in behind else Waits.NEXT
        groups[row.topic, *refused.get(row.id, (order, DETAILS[order]))].append(row)
    sums = list[SourceWaits]()
    for of, some in groups.items():
        age_ms, services = age_of(min(row.started_us for row in some), now_ms), sorted({row.service for row in some})
        sums.append(SourceWaits(*of, len(some), age_ms, services))
    return sorted(sums, key=lambda one: (-one.age_ms, one.topic, one.reason))
