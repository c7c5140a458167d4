"""What was not read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gap:
    """What was not read: a place, which is topic, partition and offsets or what else was not asked, and why.

    Args:
        topic: The real topic that it is of; empty: of none.
        partition: The half partition that it is of; None: of none.
        is_fault: Whether it cannot be read at all, as opposed to being more than is read.
    """

    place: str
    why: str
    topic: str = field(default="", repr=False)
    partition: int | None = field(default=None, repr=False)
    is_fault: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"
