"""The half partition of one transaction, and whether its half topic was recreated since (R39)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HalfPlace:
    """A half partition before the first half of a transaction was sent: halves get its `floor` or a higher offset."""

    topic_id: str
    partition: int
    floor: int

    def holds(self, offsets: Sequence[int], topic_ids: Collection[str]) -> bool:
        """Return whether halves are in the present half topic.

        A recreated topic begins at offset 0, so a low offset detects it without a request to the cluster.

        Args:
            topic_ids: Known present ids of the half topic; empty: unknown, so the result is False.
        """
        return set(topic_ids) == {self.topic_id} and min(offsets) >= self.floor
