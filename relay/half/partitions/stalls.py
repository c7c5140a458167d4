"""Half partitions that do not move although there is work for the relay (R50). Pure.

To wait for a decision, for an earlier message of the same ordering key or for a closed real topic is no such work.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

STALLED_SECONDS = 60.0
"""From then on the relay is not ready."""


@dataclass(slots=True)
class _Progress:
    """What was seen of one half partition.

    Args:
        most: The highest value of its checkpoints.
        since: Time of that value, or of the last moment without work, seconds.
    """

    most: int
    since: float
    has_work: bool


class Stalls:
    """For how long the half partitions of one relay have stood still."""

    def __init__(self) -> None:
        self._found: dict[int, _Progress] = {}

    def observe(self, partition: int, settled: int, now: float, *, has_work: bool) -> None:
        """Note how far a half partition is.

        Only more than ever before is progress: a batch that fails again and again begins at the same checkpoint.

        Args:
            settled: Its committed checkpoints, as one number that grows.
            now: Seconds of any clock that never goes back.
            has_work: Whether there are records to read or transactions to write.
        """
        found = self._found.setdefault(partition, _Progress(settled, now, has_work))
        if settled > found.most or not has_work:
            found.since = now
        found.most, found.has_work = max(found.most, settled), has_work

    def forget(self, partitions: Collection[int]) -> None:
        """Note that partitions are halted, or are not this relay's any more."""
        for partition in partitions:
            self._found.pop(partition, None)

    def seconds(self, now: float) -> dict[int, float]:
        """Return for how long each half partition has stood still, in seconds; 0: it has not."""
        return {number: now - found.since if found.has_work else 0.0 for number, found in self._found.items()}

    def why(self, now: float) -> str | None:
        """Return what keeps the relay from being ready, for probes; None if nothing does."""
        stalled = {number: seconds for number, seconds in self.seconds(now).items() if seconds > STALLED_SECONDS}
        return (
            "; ".join(
                f"partition {number} has records to settle and has not moved for {seconds:.0f} s"
                for number, seconds in sorted(stalled.items())
            )
            or None
        )
