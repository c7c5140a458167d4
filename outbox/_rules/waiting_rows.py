"""The order of a message table's rows (R55), and why rows wait, as far as real topics and that order show it. Pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

OrderingKey = tuple[str, bytes]
"""Producer group and key: the messages of one keep their order."""

Some = TypeVar("Some")
KeyedRows = Callable[[Some], Iterable[tuple[OrderingKey, int]]]
"""Returns the rows of a local transaction that have a key: ordering key and id of each."""


def behind_those(window: Collection[Some], stopped: Iterable[Some], keyed_rows: KeyedRows[Some]) -> set[Some]:
    """Return local transactions that cannot go, and all that have a row behind one of theirs with its ordering key.

    Rows of transactions interleave: a transaction that begins earlier may have a later row.

    Args:
        keyed_rows: Returns the rows of a transaction that have a key.
    """
    found = set(stopped)
    first: dict[OrderingKey, int] = {}  # the lowest id of a row that stays
    added: Collection[Some] = found
    while added:
        for transaction in added:
            for key, id_ in keyed_rows(transaction):
                first[key] = min(id_, first.get(key, id_))
        added = [one for one in window if one not in found and _is_behind(keyed_rows(one), first)]
        found.update(added)
    return found


def _is_behind(rows: Iterable[tuple[OrderingKey, int]], first: Mapping[OrderingKey, int]) -> bool:
    return any(id_ > first.get(key, id_) for key, id_ in rows)


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


REFUSALS = frozenset({Waits.TOPIC_MISSING, Waits.NOT_AUTHORIZED, Waits.TOPIC_UNAVAILABLE, Waits.PARTITION_OUT_OF_RANGE})
"""What a topic itself has against a row."""

DETAILS = {
    Waits.SAME_TRANSACTION: "another message of its transaction waits",
    Waits.SAME_KEY: "an earlier message with a key of its transaction waits",
    Waits.NOT_KNOWN: "its topic could not be looked at",
    Waits.NEXT: "nothing of its topic or order keeps it",
}


class TopicRows(NamedTuple):
    """Rows for one topic.

    Args:
        partition: The highest partition that one names; -1: none names one.
        started_us: Start of the oldest one's local transaction, us since 1970.
    """

    topic: str
    rows: int
    partition: int
    started_us: int


class WaitingRow(NamedTuple):
    """A row without its value.

    Args:
        partition: Partition that it names, or -1.
    """

    xid: int
    id: int
    started_us: int
    group: str
    topic: str
    partition: int
    key: bytes | None


class TopicState(NamedTuple):
    """What keeps a real topic from taking messages.

    Args:
        why: Why it takes none; NEXT: it takes them.
    """

    partitions: int
    why: Waits = Waits.NEXT
    detail: str = ""

    def refuses(self, partition: int) -> tuple[Waits, str] | None:
        """Return why it takes no message to a partition, or to any (-1); None if it does."""
        if self.why is not Waits.NEXT:
            return self.why, self.detail
        if partition >= self.partitions:
            return Waits.PARTITION_OUT_OF_RANGE, f"the topic has {self.partitions} partitions, a message names another"
        return None


class WaitingRows(NamedTuple):
    """Rows for one topic that wait for one reason.

    Args:
        started_us: Start of the oldest one's local transaction, us since 1970.
        groups: The producer groups of the rows, by name; empty: they were not looked at one by one.
    """

    topic: str
    why: Waits
    rows: int
    started_us: int
    detail: str
    groups: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether the topic itself refuses the rows."""
        return self.why in REFUSALS


_Local = tuple[int, int, str]
"""Local transaction, by xid and start, and producer group: what is delivered together."""


def is_any_closed(topics: Iterable[TopicRows], states: Mapping[str, TopicState]) -> bool:
    """Return whether a topic does not take some of its rows."""
    return any(states[one.topic].refuses(one.partition) for one in topics)


def all_next(topics: Iterable[TopicRows]) -> list[WaitingRows]:
    """Return the reasons of rows of which no topic refuses any."""
    return [WaitingRows(one.topic, Waits.NEXT, one.rows, one.started_us, DETAILS[Waits.NEXT]) for one in topics]


def reasons(rows: Sequence[WaitingRow], states: Mapping[str, TopicState]) -> list[WaitingRows]:
    """Return for how many rows of each topic which reason holds, the oldest first.

    Args:
        rows: The first rows of the table, in the order of their ids.
    """
    keyed: defaultdict[_Local, list[tuple[OrderingKey, int]]] = defaultdict(list)
    refused: dict[int, tuple[Waits, str]] = {}
    for row in rows:
        of_it = keyed[row.xid, row.started_us, row.group]
        if row.key is not None:
            of_it.append(((row.group, row.key), row.id))
        if (why := states[row.topic].refuses(row.partition)) is not None:
            refused[row.id] = why
    closed = {(row.xid, row.started_us, row.group) for row in rows if row.id in refused}
    behind = behind_those(keyed.keys(), closed, keyed.__getitem__)
    return _sum((row, *_reason(row, refused, closed, behind)) for row in rows)


def _reason(
    row: WaitingRow, refused: Mapping[int, tuple[Waits, str]], closed: set[_Local], behind: set[_Local]
) -> tuple[Waits, str]:
    if row.id in refused:
        return refused[row.id]
    which = (row.xid, row.started_us, row.group)
    why = Waits.SAME_TRANSACTION if which in closed else Waits.SAME_KEY if which in behind else Waits.NEXT
    return why, DETAILS[why]


def _sum(found: Iterable[tuple[WaitingRow, Waits, str]]) -> list[WaitingRows]:
    sums: dict[tuple[str, Waits], WaitingRows] = {}
    for row, why, detail in found:
        place = (row.topic, why)
        so_far = sums.get(place) or WaitingRows(row.topic, why, 0, row.started_us, detail)
        sums[place] = so_far._replace(
            rows=so_far.rows + 1,
            started_us=min(so_far.started_us, row.started_us),
            groups=so_far.groups if row.group in so_far.groups else tuple(sorted({*so_far.groups, row.group})),
        )
    return list(_oldest_first(sums.values()))


def _oldest_first(found: Iterable[WaitingRows]) -> Iterator[WaitingRows]:
    yield from sorted(found, key=lambda one: (one.started_us, one.topic, one.why))
