"""Circuit: after a time-out, publications fail at once until a probe succeeds.

Without it each local transaction of an outage holds its connection for the whole `publish_timeout_seconds`: the pool is
empty, and what only reads stands still as well.
"""

from __future__ import annotations

from outbox._publish.circuit import Circuit
from tests.mutants.runner.mutant import Harm, Mutant


def failed(self: Circuit, since: float, cause: str) -> bool:
    """Stay closed."""
    del self, since, cause
    return False


MUTANT = Mutant(
    "circuit",
    Harm.STUCK,
    Circuit.failed,
    failed,
    ("tests/process/test_circuit.py::test_circuit_opens_at_the_first_silence",),
)
