"""The time of a broker or database, estimated from times of its clock and monotonic time, both passed in as numbers."""

from __future__ import annotations


class BrokerClock:
    """Its time: the newest one that is known, plus monotonic time since. No wall clock of a client is used (R25)."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen_at = 0

    def saw(self, time: int, monotonic: int) -> None:
        """Note a time of the server, such as an append time, ms, read at a monotonic time, ms."""
        if time > self.now(monotonic):
            self._newest, self._seen_at = time, monotonic

    def now(self, monotonic: int) -> int:
        """Return the server's time at a monotonic time, ms; 0 before the first one is known."""
        return self._newest + (monotonic - self._seen_at) if self._newest else 0
