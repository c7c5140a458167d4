"""How many examples hypothesis draws: all of them, or fewer where somebody waits for the answer (`make unit`)."""

import os

_PERCENT = int(os.environ.get("OUTBOX_TEST_EXAMPLES_PERCENT", "100"))


def examples(count: int) -> int:
    """Return the number of examples for a test that draws `count` of them in a whole run."""
    return max(count * _PERCENT // 100, 1)
