"""R26: a check that could not be asked never counts: database down, local transaction still open.

If it counts as an answer UNKNOWN, a database that is down for a while uses up the checks of everything that waits: all
of it is given up undecided, out of its order, though its rows say COMMIT.
"""

from __future__ import annotations

from checker.rules.verdicts import CONSEQUENCES, Verdict, op_entry
from outbox._rules.callback_row import Row
from outbox._rules.callback_row import answer as _answer
from outbox.protocol.check import CheckRequest
from outbox.protocol.op import OpEntry, OpKind
from tests.mutants.runner.mutant import Harm, Mutant


def _always_answer(request: CheckRequest, verdict: Verdict, row: Row | None) -> OpEntry | None:
    """The op entry; without a verdict, UNKNOWN."""
    if CONSEQUENCES[verdict] is None:
        return _answer(request, OpKind.UNKNOWN, request.positions, request.first_offset, request.last_offset)
    return op_entry(request, verdict, row)


MUTANT = Mutant(
    "R26",
    Harm.OUT_OF_ORDER,
    op_entry,
    _always_answer,
    ("tests/unit/checker/test_verdicts.py::test_without_a_decision_there_is_silence",),
)
