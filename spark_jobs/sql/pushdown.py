"""Filters that Spark pushes down, as bounds of what is read. Pure.

Bounds only spare reading: Spark looks at every filter again. So a bound may let through too much, never too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a query can want of a topic.

    Args:
        partitions: Its partitions; None: all.
        first: The lowest offset.
        last: The highest offset; None: no bound.
        since: The earliest timestamp, ms since 1970; None: no bound.
        until: The latest timestamp.
        transactions: Transaction ids; None: all.
    """

    partitions: frozenset[int] | None = None
    first: int = 0
    last: int | None = None
    since: int | None = None
    until: int | None = None
    transactions: frozenset[str] | None = None

    def wants(self, transaction_id: str | None) -> bool:
        """Whether a row of this transaction can be wanted."""
        return self.transactions is None or transaction_id in self.transactions

    def wants_partition(self, partition: int) -> bool:
        """Whether a record of this partition can be wanted."""
        return self.partitions is None or partition in self.partitions


def narrowed(filters: Iterable[Filter]) -> Bounds:
    """Return the bounds that filters give together; one of another kind gives none."""
    bounds = Bounds()
    for one in filters:
        name: tuple[str, ...] = getattr(one, "attribute", ())
        if len(name) == 1 and name[0] in _NARROWING:
            bounds = _NARROWING[name[0]](bounds, one)
    return bounds


def _partition(bounds: Bounds, one: Filter) -> Bounds:
    values = _values(one)
    return bounds if values is None else replace(bounds, partitions=_both(bounds.partitions, values))


def _transaction(bounds: Bounds, one: Filter) -> Bounds:
    values = _values(one)
    return bounds if values is None else replace(bounds, transactions=_both(bounds.transactions, values))


def _offset(bounds: Bounds, one: Filter) -> Bounds:
    low, high = _range(one, 1, int)
    first = bounds.first if low is None else max(bounds.first, low)
    return replace(bounds, first=first, last=_lower(bounds.last, high))


def _timestamp(bounds: Bounds, one: Filter) -> Bounds:
    # Kafka's times have no parts of a millisecond: a bound between two of them is one that is lower.
    low, high = _range(one, 0, _milliseconds)
    since = low if bounds.since is None or low is None else max(bounds.since, low)
    return replace(bounds, since=bounds.since if since is None else since, until=_lower(bounds.until, high))


_NARROWING: dict[str, Callable[[Bounds, Filter], Bounds]] = {
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "transaction_id": _transaction,
}


def _values(one: Filter) -> frozenset[Any] | None:
    """Return the values that a filter lets through; None if it does not name them."""
    if isinstance(one, (EqualTo, EqualNullSafe)):
        return frozenset([one.value])
    return frozenset(one.value) if isinstance(one, In) else None


def _range(one: Filter, step: int, number: Callable[[Any], int]) -> tuple[int | None, int | None]:
    """Return the lowest and the highest number that a filter lets through."""
    values = _values(one)
    if values is not None:
        numbers = [number(value) for value in values if value is not None]
        return (min(numbers), max(numbers)) if numbers else (None, None)
    match one:
        case GreaterThan(_, value):
            return number(value) + step, None
        case GreaterThanOrEqual(_, value):
            return number(value), None
        case LessThan(_, value):
            return None, number(value) - step
        case LessThanOrEqual(_, value):
            return None, number(value)
        case _:
            return None, None


def _milliseconds(time: datetime) -> int:
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _lower(one: int | None, other: int | None) -> int | None:
    return min((value for value in (one, other) if value is not None), default=None)
