"""R18: state is restored only from a string that proves version, topic and offset.

A string that somebody copied to another offset, or that belongs to a topic that was deleted and made again, names
settled what is not: the halves there are passed over, and their messages lost.
"""

from __future__ import annotations

from outbox.protocol.checkpoint import _open
from tests.mutants.runner.mutant import Harm, Mutant


def _believe(text: str, offset: int, topic_id: str, kind: str) -> str:
    """What the string says."""
    del offset, topic_id, kind
    body = text.rpartition(";")[0]
    return [*body.split(";", 3), "", "", ""][3]


MUTANT = Mutant(
    "R18",
    Harm.LOST,
    _open,
    _believe,
    (
        "tests/unit/test_checkpoint.py::test_a_moved_offset_does_not_keep_its_string",
        "tests/unit/test_checkpoint.py::test_a_string_of_another_topic_is_refused_with_the_reason",
    ),
)
