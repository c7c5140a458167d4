"""Halves that were read and are not kept, because their service is at its limit (R44). Pure.

The checkpoint names them unsettled. They are read again, the lowest first, as soon as their service is below its limit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, islice

_MOST_REMOVED = 1_000
"""Removed runs that are kept before others take their place."""


class _Runs:
    """Ascending runs of offsets: added at the end, removed from the beginning."""

    def __init__(self, since: int) -> None:
        self.since = since
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._first = 0  # runs before this one are removed
        self.count = 0

    def add(self, offset: int) -> None:
        self.count += 1
        if len(self._stops) > self._first and self._stops[-1] == offset:
            self._stops[-1] = offset + 1
        else:
            self._starts.append(offset)
            self._stops.append(offset + 1)

    def lowest(self) -> int:
        return self._starts[self._first]

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset, self._first) - 1
        return index >= self._first and offset < self._stops[index]

    def __iter__(self) -> Iterator[int]:
        """Return the offsets, the lowest first."""
        return chain.from_iterable(map(range, islice(self._starts, self._first, None), self._stops[self._first :]))

    def remove_lowest(self) -> None:
        self.count -= 1
        self._starts[self._first] += 1
        if self._starts[self._first] == self._stops[self._first]:
            self._first += 1
            if self._first > _MOST_REMOVED and 2 * self._first > len(self._starts):
                del self._starts[: self._first], self._stops[: self._first]
                self._first = 0


class Deferred:
    """The deferred halves of one half partition, by service."""

    def __init__(self) -> None:
        self._services: dict[str, _Runs] = {}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._services)

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(runs.count for runs in self._services.values())

    def __contains__(self, offset: int) -> bool:
        """Return whether the half at an offset is deferred."""
        return any(offset in runs for runs in self._services.values())

    def services(self) -> list[str]:
        """Return the services of these halves."""
        return list(self._services)

    def holds(self, service: str) -> bool:
        """Return whether halves of a service are deferred."""
        return service in self._services

    def add(self, service: str, offset: int, append_time: int) -> None:
        """Defer a half. Its offset is above those of its service's other deferred halves."""
        runs = self._services.get(service)
        if runs is None:
            runs = self._services[service] = _Runs(append_time)
        runs.add(offset)

    def lowest(self, service: str, otherwise: int) -> int:
        """Return the lowest offset of a service; another one if it has none."""
        runs = self._services.get(service)
        return otherwise if runs is None else runs.lowest()

    def lowest_of_all(self, otherwise: int) -> int:
        """Return the lowest offset; another one if there is none."""
        return min((runs.lowest() for runs in self._services.values()), default=otherwise)

    def since(self) -> int | None:
        """Return the append time of the first half that was deferred, ms of broker time; None if there is none."""
        return min((runs.since for runs in self._services.values()), default=None)

    def first(self, service: str, count: int) -> list[int]:
        """Return so many offsets of a service at most, the lowest first."""
        return list(islice(self._services[service], count))

    def remove_lowest(self, service: str) -> None:
        """Remove the lowest offset of a service: its half is kept from now on."""
        runs = self._services[service]
        runs.remove_lowest()
        if not runs.count:
            del self._services[service]
