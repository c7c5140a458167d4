"""Places where the application kills itself, for table mode, in which the outbox has no place of its own to die at."""

from __future__ import annotations

import os
import signal

VARIABLE = "FLIGHTS_CRASH"
"""`before-commit:5` kills the process with SIGKILL the fifth time that it passes this place."""


class Crash:
    """Kills the process at a place.

    Args:
        text: Place and number of passes, or an empty text.
    """

    def __init__(self, text: str) -> None:
        self._place, _, left = text.partition(":")
        self._left = int(left or 1)

    def at(self, place: str) -> None:
        """Pass a place; do not return from the pass that was asked for."""
        if place != self._place:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
