"""Run the command `outbox` with a wall clock that is wrong: `python -m tests.support.wrong_clock checker`.

`TESTS_CLOCK_AHEAD` is how many seconds the clock is ahead; a negative number puts it behind. Monotonic time is right,
as on a machine whose clock was set wrong.
"""

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
