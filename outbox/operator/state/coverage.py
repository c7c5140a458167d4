"""What a search has found, has read, and has not: without the last, nothing is called absent. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Gap:
    """What was not read: a place, which is topic, partition and offsets or what else was not asked, and why."""

    place: str
    why: str
    topic: str = field(default="", repr=False)  # the real topic that it is of; empty: of none
    partition: int | None = field(default=None, repr=False)  # the half partition that it is of; None: of none
    is_fault: bool = field(default=False, repr=False)  # whether it cannot be read at all; else it is more than is read

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


class Searched(NamedTuple):
    """A span that was read: from an offset, to one behind the last, of a partition that ends there for readers."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    end_offset: int


@dataclass(kw_only=True)
class Coverage:
    """Where a search looked, and where it did not; `databases` has what answered, table sources too."""

    databases: list[str] = field(default_factory=list)
    searched: list[Searched] = field(default_factory=list)
    unread: list[Gap] = field(default_factory=list)

    def miss(self, place: str, why: str, topic: str = "", *, is_fault: bool = False) -> None:
        self.unread.append(Gap(place, why, topic, is_fault=is_fault))

    @property
    def has_fault(self) -> bool:
        return any(gap.is_fault for gap in self.unread)

    def covered(self) -> dict[str, Any]:
        return {"databases": self.databases, "searched": self.searched, "not_searched": self.unread}

    def lines(self, since: str) -> Iterator[str]:
        """Yield it as text; `since` is the time from which on topics were searched."""
        read = [span for span in self.searched if span.to_offset > span.from_offset]
        databases = ", ".join(self.databases) or "none"
        topics = f"topics from {since} on{':' if read else ', no offsets'}" if self.searched else "no topic"
        yield f"searched databases: {databases}; {topics}"
        for span in read:
            yield f"  {span.topic}/{span.partition}: {span.from_offset} to {span.to_offset} of {span.end_offset}"
        yield from (f"not searched: {gap}" for gap in self.unread)
