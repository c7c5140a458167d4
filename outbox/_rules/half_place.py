"""Where the halves of one transaction go, and whether the half topic is still the same afterwards (R39). Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HalfPlace:
    """A half partition, as it was before the first half of a transaction was sent.

    Args:
        topic_id: Id of the half topic.
        partition: Half partition.
        floor: Offset that its partition had reached: each half that is sent later lies at or behind it.
    """

    topic_id: str
    partition: int
    floor: int

    def holds(self, offsets: Sequence[int], topic_ids: Collection[str]) -> bool:
        """Return whether halves lie in the half topic as it is now.

        A topic that was made again begins at offset 0. So a low offset shows it before the cluster is asked.

        Args:
            offsets: Offsets with which the halves were acknowledged.
            topic_ids: Each id that the half topic has now, as far as it is known; empty: it must be looked up again.
        """
        return set(topic_ids) == {self.topic_id} and min(offsets) >= self.floor
