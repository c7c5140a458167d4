"""When a batch leaves: closed by count, bytes or age, and at once while there is little traffic. Pure.

A lone message must not wait for company, and a flood must not be cut into thousands of small Kafka transactions. Nor
must a Kafka transaction begin while the broker is still ending the one before: it is refused, and librdkafka tries
again only after 20 ms.
"""

from __future__ import annotations

from relay.delivery.rules.volume import BatchPolicy
from relay.half.ledger.ready_queue import Ready

WORTH_WAITING = 100
"""Messages that must be expected within the age of a batch; for fewer the batch does not wait."""

BATCH_AGE_MS = 10
"""Longest that a batch is filled under load. No setting: the relay adapts the wait to the traffic, and a longer one
only adds latency."""


class Pacing:
    """Decides when the next batch leaves.

    Args:
        age: Time after its first message was ready to be written, ms; later messages do not prolong it.
    """

    def __init__(self, policy: BatchPolicy, age: int = BATCH_AGE_MS) -> None:
        self._policy = policy
        self._age = age
        self._left_at = 0
        self._since: int | None = None  # when the first message of the next batch was seen
        self._rests_until = 0

    def leaves(self, ready: Ready, now: int) -> bool:
        """Whether the batch leaves now, at this monotonic time (ms); if so, it counts as gone."""
        if not ready.messages:
            self._since = None
            return True  # whatever else there is to write does not wait
        if self._since is None:
            self._since = now
        if not self._is_full(ready) and now < max(self._rests_until, self._since + self._longest(ready, now)):
            return False
        self._left_at, self._since = now, None
        return True

    def written(self, now: int, rest: int) -> None:
        """Record that a batch was written; for so many ms the next one leaves only when it is full."""
        self._rests_until = now + rest

    def wait(self, now: int) -> int | None:
        """How long the batch that waits may still do so, ms; None if none waits."""
        if self._since is None:
            return None
        until = self._rests_until if now < self._rests_until else self._since + self._age
        return max(until - now, 0)

    def _is_full(self, ready: Ready) -> bool:
        return ready.messages >= self._policy.messages or ready.bytes >= self._policy.bytes

    def _longest(self, ready: Ready, now: int) -> int:
        """How long more messages are waited for, ms; not at all if too few come, at the rate since the last batch."""
        comes = ready.messages * self._age >= WORTH_WAITING * max(now - self._left_at, 1)
        return self._age if comes else 0
