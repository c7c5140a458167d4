"""R64: a command ends its process itself, and does not let Python take the interpreter apart.

Without it, a client's thread that enters the interpreter then crashes the process: a relay without a right ends with
SIGSEGV, not with 4. What restarts it does so again and again, and nobody sees the cause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from outbox._cli.process_end import run_and_end
from tests.mutants.runner.mutant import Harm, Mutant


def _let_python_end(command: Callable[[], None]) -> NoReturn:
    """Return to Python, as a program does by itself."""
    command()
    sys.exit()


MUTANT = Mutant(
    "R64",
    Harm.STUCK,
    run_and_end,
    _let_python_end,
    ("tests/process/test_process_end.py::test_a_relay_whose_clients_still_wait_ends_with_its_exit_code",),
)
