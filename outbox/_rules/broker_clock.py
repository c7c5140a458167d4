"""The time of a broker or database, and the age of check requests by it (R25).

Times of its clock and monotonic time are passed in as numbers.
"""

from collections import defaultdict


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


STALE_MS = 600_000
"""Older requests, ms, are dropped: the relay has repeated them since."""


class RequestAges:
    """The ages of check requests, separately for each partition of the check topic.

    Append times are compared with append times of the same partition, plus monotonic time since. No wall clock of this
    machine is used.
    """

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        self._clocks: defaultdict[int, BrokerClock] = defaultdict(BrokerClock)
        self._last: dict[int, int] = {}

    def note_newest(self, partition: int, offset: int, append_time: int) -> None:
        """Note the append time, in ms, of the newest record of a partition, which may be read much later."""
        self._newest[partition] = (offset, append_time)

    def is_stale(self, partition: int, offset: int, append_time: int, monotonic: int) -> bool:
        """Return whether a request is older than `STALE_MS`; call it in the order of offsets. Times are ms."""
        if append_time < self._last.get(partition, 0):
            del self._clocks[partition]  # a leader with a slower clock, or older records read again
        self._last[partition] = append_time
        self._clocks[partition].saw(append_time, monotonic)
        newest_offset, newest_time = self._newest.get(partition, (-1, -1))
        now = newest_time if offset < newest_offset else self._clocks[partition].now(monotonic)
        return append_time < now - STALE_MS
