"""R20: what was settled without a delivery is named no more as soon as there is room, whatever makes it.

While the string is full, what was rolled back stays named. If only the next rollback looked again, and the lowest named
offset were such a one, nothing above it could be said, and all that is committed there would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from relay.state.unsettled import Unsettled
from tests.mutants.runner.mutant import Harm, Mutant


def settle(self: Unsettled, offsets: Iterable[int]) -> None:
    """Offsets are settled; nobody looks at the others."""
    for offset in offsets:
        self._remove(offset)


MUTANT = Mutant(
    "R20",
    Harm.STUCK,
    Unsettled.settle,
    settle,
    ("tests/unit/relay/test_unsettled.py::test_rolled_back_offsets_leave_checkpoint_when_space_frees",),
)
