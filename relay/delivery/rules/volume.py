"""The size of the next Kafka transaction: halved after a time-out, then larger while the connection can carry it. Pure.

A batch that the connection cannot carry within the time-outs would otherwise fail again and again. One transaction
cannot be halved: it gets longer time-outs instead.
"""

from dataclasses import dataclass, replace

PATIENCE_MAX = 3
"""The longest time-outs, as a multiple of the usual ones: `transaction.timeout.ms` becomes 45 s.

A coordinator looks for those that timed out every 10 s: readers wait for less than a minute behind a relay that died.
"""

BATCH_BYTES = 16_777_216
"""Approximate bytes of a Kafka transaction. No setting: over a thin connection the relay itself writes less (R34)."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """What closes a batch, whichever comes first."""

    messages: int = 10_000
    bytes: int = BATCH_BYTES


REST_SECONDS_EACH = 0.0005
REST_SECONDS_MAX = 0.02
"""A small Kafka transaction costs the broker milliseconds, whatever it holds: many messages wait for company, up to
this, and one alone does not."""


def rest(messages: int, owners: int = 1) -> float:
    """Return the pause after a batch of so many messages, seconds, where so many owners share their flow."""
    return min(REST_SECONDS_EACH * owners * max(messages - 1, 0), REST_SECONDS_MAX)


class Volume:
    """What the batches of one owner may hold. It outlasts a take-over, which follows every failure."""

    def __init__(self, policy: BatchPolicy, request_seconds: float) -> None:
        self._policy = policy
        self._quick_seconds = request_seconds / 2
        self.limit = policy
        """What closes a batch now."""
        self.patience = 1
        """Multiple of the usual time-outs for the next producer."""

    @property
    def is_reduced(self) -> bool:
        """Whether the next batch is smaller, or its time-outs longer, than usual."""
        return self.limit != self._policy or self.patience > 1

    def timed_out(self, messages: int, size: int, *, is_single: bool) -> None:
        """Make the next batch half as large as one that timed out; a single one gets longer time-outs."""
        limit = self.limit
        self.limit = replace(limit, messages=_half(min(messages, limit.messages)), bytes=_half(min(size, limit.bytes)))
        if is_single:
            self.patience = min(2 * self.patience, PATIENCE_MAX)

    def written(self, messages: int, size: int, seconds: float) -> None:
        """Let the next batch be twice as large if this one filled at least half of its limit in a short time."""
        limit, policy = self.limit, self._policy
        is_large = 2 * messages >= limit.messages or 2 * size >= limit.bytes
        if limit != policy and is_large and seconds < self._quick_seconds:
            self.limit = replace(
                limit, messages=min(2 * limit.messages, policy.messages), bytes=min(2 * limit.bytes, policy.bytes)
            )
        self.patience = 1


def _half(number: int) -> int:
    return max(number // 2, 1)


OVERHEAD = 256
"""Bytes of a record batch beside its records, and to spare."""

WINDOW_SECONDS = 10.0
"""Time without a small topic after which batches may be larger again: much longer than a fresh producer takes."""


class BatchSize:
    """The batch size of one producer."""

    def __init__(self, largest: int, now: float) -> None:
        self._largest = self._current = self._needed = largest
        self._since = now

    def for_topics(self, max_message_bytes: int, now: float) -> int:
        """Return the largest record batch for topics with this lowest limit, bytes."""
        needed = max(min(max_message_bytes - OVERHEAD, self._largest), 1)
        self._needed = min(self._needed, needed)
        self._current = min(self._current, needed)
        if now - self._since >= WINDOW_SECONDS:
            self._current, self._needed, self._since = self._needed, needed, now
        return self._current
