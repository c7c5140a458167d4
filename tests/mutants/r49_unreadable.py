"""R49: a record that cannot be unpacked halts its half partition at a named offset.

Without it the relay reads the same offset for ever, is ready, and delivers nothing that lies behind the record.
"""

from __future__ import annotations

from outbox.protocol.names import Place
from relay.serving.intake import Intake, Unreadable
from tests.mutants.runner.mutant import Harm, Mutant


def _none(self: Intake) -> dict[Place, Unreadable]:
    """Take it for an error that passes."""
    del self
    return {}


MUTANT = Mutant(
    "R49",
    Harm.STUCK,
    Intake.unreadable,
    _none,
    ("tests/unit/relay/test_intake.py::test_record_that_cannot_be_unpacked_is_named",),
)
