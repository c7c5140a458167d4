"""The broker's time, estimated from append times and monotonic time, both passed in as numbers."""

from __future__ import annotations


class BrokerClock:
    """The broker's time: the newest append time, plus monotonic time since. No wall clock of a client is used (R25)."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen_at = 0

    def saw(self, append_time: int, monotonic: int) -> None:
        """Note an append time, ms, read at a monotonic time, ms."""
        if append_time > self.now(monotonic):
            self._newest, self._seen_at = append_time, monotonic

    def now(self, monotonic: int) -> int:
        """Return the broker's time at a monotonic time, ms; 0 before the first append time."""
        return self._newest + (monotonic - self._seen_at) if self._newest else 0
