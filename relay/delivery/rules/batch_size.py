"""The size of record batches: lowered at once for a topic that takes less, raised again without such a topic. Pure.

librdkafka has one `batch.size` for all topics, and fills batches without regard to a topic's `max.message.bytes`.
Small batches slow all topics down, and another size needs a fresh producer.
"""

from __future__ import annotations

OVERHEAD = 256
"""Bytes of a record batch beside its records, and to spare."""

WINDOW_SECONDS = 10.0
"""Time without a small topic after which batches may be larger again: much longer than a fresh producer takes."""


class BatchSize:
    """The batch size of one producer.

    Args:
        largest: Without a topic that takes less, bytes.
        now: Monotonic seconds.
    """

    def __init__(self, largest: int, now: float) -> None:
        self._largest = self._current = self._needed = largest
        self._since = now

    def for_topics(self, max_message_bytes: int, now: float) -> int:
        """Return the largest record batch for the next Kafka transaction, bytes.

        Args:
            max_message_bytes: The lowest limit of its topics.
            now: Monotonic seconds.
        """
        needed = max(min(max_message_bytes - OVERHEAD, self._largest), 1)
        self._needed = min(self._needed, needed)
        self._current = min(self._current, needed)
        if now - self._since >= WINDOW_SECONDS:
            self._current, self._needed, self._since = self._needed, needed, now
        return self._current
