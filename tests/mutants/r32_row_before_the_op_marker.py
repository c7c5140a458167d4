"""R32: an operator's decision becomes the row first, and only then an op marker.

An op marker alone is a guess: an application that is still about to write its row commits it, and its message is never
delivered, because the relay has settled its half as rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox._rules.callback_row import Row
from outbox.operator.reading.database_view import Alive, DatabaseStatus, DatabaseView
from outbox.operator.state.rulings import SourceState
from outbox.protocol.check import CheckRequest
from outbox.protocol.op import OpKind
from tests.mutants.runner.mutant import Harm, Mutant


def _decide(
    self: DatabaseView, requests: Sequence[CheckRequest], kind: OpKind, *, alive: Alive, gone: str | None
) -> dict[str, DatabaseStatus]:
    """Take the operator's word for the rows."""
    del alive, gone
    committed = kind is OpKind.COMMIT
    standing = SourceState.COMMITTED if committed else SourceState.ROLLED_BACK
    return {
        one.transaction_id: DatabaseStatus(
            standing,
            self._name,
            Row(committed, one.topic_id, one.partition, one.first_offset, one.last_offset, one.positions),
        )
        for one in requests
    }


MUTANT = Mutant(
    "R32",
    Harm.LOST,
    DatabaseView.decide,
    _decide,
    ("tests/integration/operator/test_resolve.py::test_an_application_that_commits_after_a_rollback_is_fenced",),
)
