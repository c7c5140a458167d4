"""R32: an operator's decision becomes the row first, and only then an op marker.

An op marker alone is a guess: an application that is still about to write its row commits it, and its message is never
delivered, because the relay has settled its half as rolled back.
"""

from __future__ import annotations

from collections.abc import Callable

from checker.rules.verdicts import Row
from outbox.operator.reading.database_view import DatabaseStatus, DatabaseView
from outbox.operator.state.rulings import SourceState
from outbox.protocol.check import CheckRequest
from outbox.protocol.op import OpKind
from tests.mutants.runner.mutant import Harm, Mutant


def _decide(
    self: DatabaseView, request: CheckRequest, kind: OpKind, *, alive: Callable[[], bool], gone: str | None
) -> DatabaseStatus:
    """Take the operator's word for the row."""
    del alive, gone
    committed = kind is OpKind.COMMIT
    place = (request.topic_id, request.partition, request.first_offset, request.last_offset, request.positions)
    return DatabaseStatus(
        SourceState.COMMITTED if committed else SourceState.ROLLED_BACK, self._name, Row(committed, *place)
    )


MUTANT = Mutant(
    "R32",
    Harm.LOST,
    DatabaseView.decide,
    _decide,
    ("tests/integration/operator/test_resolve.py::test_an_application_that_commits_after_a_rollback_is_fenced",),
)
