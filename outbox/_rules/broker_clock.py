"""The broker's time, estimated from append times and this machine's monotonic clock. Pure: time comes in as numbers."""

from __future__ import annotations


class BrokerClock:
    """The broker's time: the newest append time seen, plus monotonic time since. No client clock decides (R25)."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen_at = 0

    def saw(self, append_time: int, monotonic: int) -> None:
        """Note an append time, both in ms."""
        if append_time > self.now(monotonic):
            self._newest, self._seen_at = append_time, monotonic

    def now(self, monotonic: int) -> int:
        """The broker's time at a monotonic time, ms; 0 before anything was seen."""
        return self._newest + (monotonic - self._seen_at) if self._newest else 0
