"""The order of a message table's rows (R55). Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

OrderingKey = tuple[str, bytes]
"""Service and key: the messages of one keep their order."""

Some = TypeVar("Some")
KeyedRows = Callable[[Some], Iterable[tuple[OrderingKey, int]]]
"""Returns the rows of a local transaction that have a key: ordering key and id of each."""


def behind_those(window: Collection[Some], stopped: Iterable[Some], keyed_rows: KeyedRows[Some]) -> set[Some]:
    """Return local transactions that cannot go, and all that have a row behind one of theirs with its ordering key.

    Rows of transactions interleave: a transaction that begins earlier may have a later row.
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
