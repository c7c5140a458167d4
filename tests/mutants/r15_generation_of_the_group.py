"""R15: offsets are committed with the metadata of a subscribed consumer, of generation 0 or more.

Metadata of no generation passes any check of a classic group, also while another relay is its member. A relay that has
lost its partitions could move their checkpoint all the same, and what the other one delivers twice, or not at all,
depends on who was last.
"""

from __future__ import annotations

from relay.serving.group_metadata import GroupMetadata
from tests.mutants.runner.mutant import Harm, Mutant


def for_commit(self: GroupMetadata) -> bytes:
    """Whatever the consumer says."""
    return self.newest


MUTANT = Mutant(
    "R15",
    Harm.DOUBLED,
    GroupMetadata.for_commit,
    for_commit,
    ("tests/unit/outbox/test_group_metadata.py::test_offsets_are_not_committed_without_a_generation",),
)
