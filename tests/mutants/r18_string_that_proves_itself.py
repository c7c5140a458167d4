"""R18: state is restored only from a string that proves version, topic, partition and offset.

A string that was copied to another offset or partition, or that belongs to a recreated topic, calls halves settled that
are not: they are passed over, and their messages are lost.
"""

from __future__ import annotations

from outbox.protocol.checkpoint import _open
from tests.mutants.runner.mutant import Harm, Mutant


def _believe(text: str, offset: int, topic_id: str, partition: int, kind: str) -> str:
    """What the string says."""
    del offset, topic_id, partition, kind
    body = text.rpartition(";")[0]
    return [*body.split(";", 3), "", "", ""][3]


MUTANT = Mutant(
    "R18",
    Harm.LOST,
    _open,
    _believe,
    (
        "tests/unit/protocol/test_checkpoint.py::test_a_moved_offset_does_not_keep_its_string",
        "tests/unit/protocol/test_checkpoint.py::test_a_string_of_another_topic_is_refused_with_the_reason",
        "tests/unit/protocol/test_checkpoint.py::test_string_of_another_partition_is_refused",
    ),
)
