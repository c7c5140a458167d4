"""The circuit breaker of an outbox: after Kafka fails to answer, nothing is sent until Kafka answers again.

Without it every local transaction during an outage would hold its connection for the whole
`publish_timeout_seconds`, and requests that only read would find the pool empty. A background probe closes the circuit.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from outbox.errors import PublishFailed


@dataclass(frozen=True, slots=True)
class _Opening:
    at: float  # s, monotonic
    clock: str
    cause: str


class Circuit:
    """A circuit breaker that threads share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered_at = -math.inf
        self._opening: _Opening | None = None

    def require_closed(self) -> None:
        """Refuse a publication while the circuit is open, without waiting."""
        opening = self._opening
        if opening is not None:
            raise PublishFailed(
                f"The circuit is open: Kafka has not answered since {opening.clock} "
                f"({time.monotonic() - opening.at:.0f} s ago). Nothing was sent. Roll the local transaction back and "
                "try again later (HTTP: 503 with Retry-After). The circuit closes by itself when Kafka answers. First "
                f"failure: {opening.cause}"
            )

    def answered(self) -> None:
        self._answered_at = time.monotonic()

    def failed(self, since: float, cause: str) -> bool:
        """Open the circuit, unless Kafka has answered any request since then.

        Args:
            since: When the failed request was sent, seconds of the monotonic clock.

        Returns:
            Whether this call opened the circuit.
        """
        with self._lock:
            if self._opening is not None or self._answered_at >= since:
                return False
            clock = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._opening = _Opening(time.monotonic(), clock, cause)
            return True

    def close(self) -> float | None:
        """Close the circuit; return the seconds for which it was open, None if it was not."""
        with self._lock:
            self.answered()
            opening, self._opening = self._opening, None
        return None if opening is None else time.monotonic() - opening.at
