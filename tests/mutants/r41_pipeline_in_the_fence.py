"""R41: the checker sends no statement in a pipeline.

The server ends a session that is idle in a transaction. Between two commands of a pipeline a session is not idle but
active, and no limit applies: a checker that is frozen there keeps its advisory locks for as long as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fencing import rollback_rows
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest
from tests.mutants.runner.mutant import Harm, Mutant

_insert = rollback_rows._insert


def pipelined(
    connection: psycopg.Connection[Any],
    table: CallbackTable,
    channel: str,
    requests: Sequence[CheckRequest],
    *,
    in_discard_topic: bool,
) -> bool:
    """Insert them in a pipeline."""
    with connection.pipeline():
        return _insert(connection, table, channel, requests, in_discard_topic=in_discard_topic)


MUTANT = Mutant(
    "R41",
    Harm.STUCK,
    rollback_rows._insert,
    pipelined,
    ("tests/integration/checker/test_checker.py::test_stopped_checker_is_replaced_and_does_no_harm",),
)
