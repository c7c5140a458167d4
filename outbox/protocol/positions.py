"""Positions: which messages of a transaction count, written as run lengths such as `0-2,5`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from outbox.protocol.errors import ProtocolError

MAX_POSITION = 9_999
"""A transaction has at most 10,000 messages."""

_SHORT = 16
_RUN = re.compile(r"(0|[1-9][0-9]{0,3})(?:-([1-9][0-9]{0,3}))?")


@dataclass(frozen=True, slots=True)
class Positions:
    """An ordered set of message positions, kept as inclusive runs; empty when nothing counts.

    `str(positions)` is the form of the wire and of the callback row; an empty set is written `-`.
    """

    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, positions: Iterable[int]) -> Positions:
        """Collect single positions, in any order, repeats allowed."""
        runs: list[tuple[int, int]] = []
        for position in sorted(set(positions)):
            if runs and runs[-1][1] == position - 1:
                runs[-1] = (runs[-1][0], position)
            else:
                runs.append((position, position))
        return cls(tuple(runs))

    @classmethod
    def first(cls, count: int) -> Positions:
        """Return the positions 0 to count - 1."""
        return cls(((0, count - 1),)) if count else cls(())

    @classmethod
    def parse(cls, text: str) -> Positions:
        """Read the written form.

        Raises:
            ProtocolError: It is not ascending runs within 0 to 9,999, in the one form in which they are written.
        """
        return _parse_short(text) if len(text) <= _SHORT else cls._parse(text)

    @classmethod
    def _parse(cls, text: str) -> Positions:
        if text == "-":
            return cls(())
        runs = tuple(_parse_run(part, text) for part in text.split(","))
        if any(before[1] + 1 >= after[0] for before, after in pairwise(runs)):
            raise ProtocolError(f"positions {text[:80]!r}: runs must ascend with a gap between them")
        return cls(runs)

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.runs) or "-"

    def __len__(self) -> int:
        count = 0
        for first, last in self.runs:
            count += last - first + 1
        return count

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)

    def __contains__(self, position: object) -> bool:
        return isinstance(position, int) and any(first <= position <= last for first, last in self.runs)


@lru_cache(maxsize=1024)
def _parse_short(text: str) -> Positions:
    """Nearly all transactions have the positions of many others."""
    return Positions._parse(text)  # noqa: SLF001 - the same class, with a memory


def _parse_run(part: str, whole: str) -> tuple[int, int]:
    match = _RUN.fullmatch(part)
    if match is None:
        raise ProtocolError(f"positions {whole[:80]!r}: {part[:20]!r} is not a number or a run of numbers")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if match[2] is not None and last <= first:
        raise ProtocolError(f"positions {whole[:80]!r}: a run goes from a number to a larger one")
    return first, last
