"""R11: the purge waits until it has read the discard topic to the end that readers do not see yet.

A checkpoint may be visible while the discard records of the same Kafka transaction are not: Kafka writes its marks one
by one. Who reads to the last stable offset takes such a transaction for delivered; its row is purged, and it is lost.
"""

from __future__ import annotations

from checker.upkeep.discarded_ids import DiscardIndex
from outbox._kafka.admin import end_offsets
from tests.mutants.runner.mutant import Harm, Mutant


def _read_on(self: DiscardIndex) -> frozenset[int]:
    """Read to where readers see everything, and take that for all."""
    ends = end_offsets(self._admin, {self._topic: len(self._next)}, stable=True)[self._topic]
    if self._behind(ends):
        self._read(ends)
    return frozenset(range(len(ends)))


MUTANT = Mutant(
    "R11",
    Harm.LOST,
    DiscardIndex.read_on,
    _read_on,
    ("tests/integration/checker/test_purge.py::test_nothing_goes_while_the_discard_topic_is_held_back",),
)
