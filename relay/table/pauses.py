"""Pauses of a table source between two turns."""

from collections.abc import Callable

IDLE_MIN_SECONDS = 0.001
IDLE_MAX_SECONDS = 0.05
"""Pause between two looks at an empty table; it doubles up to this."""


class Pauses:
    """Pauses of one table source.

    Args:
        stopping: Waits for so many seconds; returns whether to stop.
    """

    def __init__(self, stopping: Callable[[float], bool]) -> None:
        self._stopping = stopping
        self._idle = IDLE_MIN_SECONDS

    def first(self) -> bool:
        """Pause before the first turn; return whether to stop."""
        return self._stopping(IDLE_MIN_SECONDS)

    def after(self, *, found: bool, seconds: float) -> bool:
        """Pause after a turn; return whether to stop.

        Args:
            found: Whether there was anything to do.
            seconds: Pause if there was anything to do.
        """
        if found:
            self._idle = IDLE_MIN_SECONDS
            return self._stopping(seconds)
        pause, self._idle = self._idle, min(2 * self._idle, IDLE_MAX_SECONDS)
        return self._stopping(pause)
