"""`python -m tests.support.wrong_clock …`: `outbox` with a wall clock that is TESTS_CLOCK_AHEAD seconds ahead."""

import os
import time

from outbox._cli.main import main

VARIABLE = "TESTS_CLOCK_AHEAD"


def put_wrong(seconds: float) -> None:
    """Shift the wall clock of this process, as Python code reads it."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(seconds * 1e9)


if __name__ == "__main__":
    put_wrong(float(os.environ[VARIABLE]))
    main()
