"""R77: each session of relay, checker and operators has the settings that decide text.

Without them those of a role, a database or an environment decide the key of a row of a foreign table, and so its
partition: messages of one key come in another order.
"""

from __future__ import annotations

from outbox._postgres import dsn
from tests.mutants.runner.mutant import Harm, Mutant


def _theirs(options: str) -> dict[str, str]:
    """Leave the settings as they are."""
    return {"options": options}


MUTANT = Mutant(
    "R77",
    Harm.OUT_OF_ORDER,
    dsn._session_parameters,
    _theirs,
    (
        "tests/integration/relay/test_session_settings.py::test_each_connection_has_the_settings_that_decide_text",
        "tests/integration/relay/test_session_settings.py::test_settings_of_a_role_decide_no_byte_of_a_foreign_table",
    ),
)
