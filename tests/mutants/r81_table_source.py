"""R81: an unforeseen error halts the table source that it is about.

Without it one row that meets a bug ends the relay, again after each restart: all tables and half partitions stand
still.
"""

from __future__ import annotations

from outbox._service.exit_codes import UnsafeError
from relay.tables.source_threads import _SourceThread
from tests.mutants.runner.mutant import Harm, Mutant

_original = _SourceThread._halt


def _halt(self: _SourceThread, error: Exception) -> None:
    """Halt only for what was foreseen; anything else ends the relay."""
    if not isinstance(error, UnsafeError):
        raise error
    _original(self, error)


MUTANT = Mutant(
    "R81",
    Harm.STUCK,
    _SourceThread._halt,
    _halt,
    ("tests/integration/relay/test_unforeseen.py::test_an_unforeseen_error_halts_its_table_source_alone",),
)
