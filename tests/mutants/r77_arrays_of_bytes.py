"""R77: no setting of the application's session decides what a published row has.

Without it several messages come as arrays of bytes, which the driver writes by `standard_conforming_strings`: with the
setting off, other keys and bodies are stored than were published, and nobody notices but consumers.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox import Message
from outbox._table.message_insert import MessageInsert, Statement
from tests.mutants.runner.mutant import Harm, Mutant

_OF = MessageInsert.of
_SPLIT = "CAST(string_to_array(CAST(%s AS text), ',', '-') AS bytea[])"


def _of(self: MessageInsert, messages: Sequence[Message], *, numbered: bool, more: str = "") -> Statement:
    """Give keys and values as lists of bytes."""
    text, parameters = _OF(self, messages, numbered=numbered, more=more)
    if len(messages) == 1 or numbered:
        return Statement(text, parameters)
    contents = [message.key_bytes() for message in messages], [message.value_bytes() for message in messages]
    return Statement(text.replace(_SPLIT, "CAST(%s AS bytea[])"), (*parameters[:4], *contents, *parameters[6:]))


MUTANT = Mutant(
    "R77",
    Harm.OUT_OF_ORDER,
    MessageInsert.of,
    _of,
    ("tests/integration/library/test_table_mode.py::test_no_setting_of_a_session_decides_what_a_row_has",),
)
