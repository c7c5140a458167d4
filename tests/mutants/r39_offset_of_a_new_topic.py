"""R39: a half whose offset is lower than one that its partition had reached lies in a topic that was made again.

Without it, an application that runs on after a channel was made again commits until it has described the topic anew,
and nothing of that is delivered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from outbox._rules.half_place import HalfPlace
from tests.mutants.runner.mutant import Harm, Mutant


def _by_id(self: HalfPlace, offsets: Sequence[int], topic_ids: Collection[str]) -> bool:
    """Compare only the ids."""
    del offsets
    return set(topic_ids) == {self.topic_id}


MUTANT = Mutant(
    "R39",
    Harm.STUCK,
    HalfPlace.holds,
    _by_id,
    ("tests/unit/outbox/test_half_place.py::test_low_offset_shows_a_new_topic",),
)
