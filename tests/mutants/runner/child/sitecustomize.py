"""Python imports this at the start of a process: services and applications that a test starts get its mutant."""

import os

from tests.mutants.runner.plugin import VARIABLE, put_in_place

if os.environ.get(VARIABLE):
    try:
        put_in_place(os.environ[VARIABLE])
    except Exception as error:
        # Python would print any other exception, and go on with the shipped function.
        raise SystemExit(f"mutant {os.environ[VARIABLE]}: {error!r}") from error
