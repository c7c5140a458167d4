"""The circuit breaker of an outbox: after Kafka fails to answer, nothing is sent until Kafka answers again.

Without it every local transaction during an outage would hold its connection for the whole
`publish_timeout_seconds`, and requests that only read would find the pool empty. In half mode a background probe closes
the circuit. In auto mode a probe makes it half-open, and the acknowledged halves of one transaction close it.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from outbox._rules.circuit_states import CALM_SECONDS, TRANSITIONS, CircuitEvent, CircuitState, probe_pause
from outbox.errors import PublishFailed


@dataclass(frozen=True, slots=True)
class _Opening:
    at: float  # s, monotonic
    clock: str
    cause: str


class Circuit:
    """A circuit breaker that threads share.

    Args:
        opens_always: Whether each failure opens it; otherwise only one without an answer to another request since.
    """

    def __init__(self, *, opens_always: bool = False) -> None:
        self._lock = threading.Lock()
        self._opens_always = opens_always
        self._answered_at = -math.inf
        self._closed_at = -math.inf
        self._failures = 0
        self._opening: _Opening | None = None
        self.state = CircuitState.CLOSED

    @property
    def is_open(self) -> bool:
        """Whether publications are refused; the one that tries is not."""
        return self.state in {CircuitState.OPEN, CircuitState.HALF_OPEN}

    @property
    def pause(self) -> float:
        """Seconds before the next probe."""
        return probe_pause(self._failures)

    def require_closed(self) -> None:
        """Refuse a publication while the circuit is open, without waiting.

        Raises:
            PublishFailed: The circuit is open.
        """
        opening = self._opening
        if opening is not None and self.is_open:
            raise PublishFailed(
                f"The circuit is open: Kafka has not answered since {opening.clock} "
                f"({time.monotonic() - opening.at:.0f} s ago). Nothing was sent. Roll the local transaction back and "
                "try again later (HTTP: 503 with Retry-After). The circuit closes by itself when Kafka answers. First "
                f"failure: {opening.cause}"
            )

    def answered(self) -> None:
        """Record that Kafka answered now."""
        self._answered_at = time.monotonic()

    def failed(self, since: float, cause: str) -> bool:
        """Open the circuit, unless Kafka has answered any request since then.

        Args:
            since: When the failed request was sent, seconds of the monotonic clock.
            cause: Cause of the failure, for the error message.

        Returns:
            Whether this call opened the circuit.
        """
        with self._lock:
            before, now = self.state, time.monotonic()
            if (self._answered_at >= since and not self._opens_always) or not self._move(CircuitEvent.FAILED):
                return False
            was_calm = before is CircuitState.CLOSED and now - self._closed_at > CALM_SECONDS
            self._failures = 0 if was_calm else self._failures + 1
            if self._opening is None:
                self._opening = _Opening(now, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), cause)
            return True

    def probe_failed(self) -> None:
        """Record that a probe failed."""
        self._failures += 1

    def half_open(self) -> bool:
        """Let one transaction try; return whether the state changed."""
        with self._lock:
            return self._move(CircuitEvent.PROBED)

    def try_now(self) -> bool:
        """Return whether the caller's transaction is the one that tries; it then calls `close()` or `abandon()`."""
        with self._lock:
            return self._move(CircuitEvent.TRIED)

    def abandon(self) -> None:
        """Let another transaction try, if the trial had no result."""
        with self._lock:
            self._move(CircuitEvent.ABANDONED)

    def close(self) -> float | None:
        """Close the circuit; return the seconds for which it was open, None if it was not."""
        with self._lock:
            self.answered()
            if not self._move(CircuitEvent.ANSWERED):
                return None
            opening, self._opening = self._opening, None
            self._closed_at = time.monotonic()
        return 0.0 if opening is None else time.monotonic() - opening.at

    def _move(self, event: CircuitEvent) -> bool:
        """Take a transition of the table; return whether there is one."""
        found = TRANSITIONS.get((self.state, event))
        if found is None:
            return False
        self.state = found
        return True
