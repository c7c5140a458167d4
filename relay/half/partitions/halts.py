"""Half partitions that stop until an operator has acted. Pure.

A half partition halts where its checkpoint or a record cannot be read: to go on would be a guess. The others go on.
"""

from __future__ import annotations

from collections.abc import Collection

LOOK_AGAIN_SECONDS = 30.0
"""Pause before a halted partition is tried again: an operator may have settled its cause meanwhile."""


class Halts:
    """The halted half partitions of one relay, each with its cause."""

    def __init__(self) -> None:
        self._causes: dict[int, Exception] = {}

    def halt(self, partition: int, cause: Exception) -> None:
        """Note that a partition is halted."""
        self._causes[partition] = cause

    def end(self, partitions: Collection[int]) -> None:
        """Note that partitions are served, or are not this relay's any more."""
        for partition in partitions:
            self._causes.pop(partition, None)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._causes)

    def why(self) -> str | None:
        """Return what keeps them, for probes; None if there is none."""
        return (
            "; ".join(f"partition {number} is halted: {self._causes[number]}" for number in sorted(self._causes))
            or None
        )

    def of_all(self, partitions: int) -> Exception | None:
        """Return a cause if each partition of a channel is halted here, so that this relay has nothing to do.

        Args:
            partitions: How many the channel has.
        """
        return self._causes[min(self._causes)] if len(self._causes) == partitions else None
