"""R11: the purge reads the checkpoint first, and the discard topic after it.

A transaction that moves to the discard topic between the two looks is seen in neither place if they are taken the other
way round: it is not there yet, and below the checkpoint already. Its row is purged, and its decision is lost with it.
"""

from __future__ import annotations

from checker.rules.settlement import ChannelProgress
from checker.upkeep.delivery_progress import DeliveryReader
from tests.mutants.runner.mutant import Harm, Mutant


def _read(self: DeliveryReader) -> ChannelProgress:
    """The discard topic first."""
    discards = self._read_discards()
    checkpoints = self._read_checkpoints()
    return self._progress(checkpoints, discards)


MUTANT = Mutant(
    "R11",
    Harm.LOST,
    DeliveryReader.read,
    _read,
    ("tests/integration/checker/test_purge.py::test_what_moves_to_the_discard_topic_between_the_looks_stays",),
)
