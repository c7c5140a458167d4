"""R47: a statement that would end a session's transaction with messages in it is refused.

Without it, the change before a ROLLBACK in SQL is gone, the next statement begins another transaction, and the message
is published with that one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from outbox._publish.sqlalchemy_session import _refuse_end_in_sql
from tests.mutants.runner.mutant import Harm, Mutant


def _pass(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """Let every statement pass."""
    del connection, statement


MUTANT = Mutant(
    "R47",
    Harm.PHANTOM,
    _refuse_end_in_sql,
    _pass,
    ("tests/integration/library/test_raw_ends.py::test_end_in_sql_of_a_session_is_refused",),
)
