"""Where the topics of a channel end, asked for beside the consumer: its own figures stop with its fetches."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import end_offsets
from outbox._service.periodic import Periodic

LOOK_SECONDS = 10.0


class LogEnds:
    """The log end offsets of some topics, as of the last look.

    They count what an open Kafka transaction hides from the relay, too.

    Args:
        partitions: The topics, with the number of partitions of each.
    """

    def __init__(self, admin: AdminClient, partitions: Mapping[str, int]) -> None:
        self._admin = admin
        self._partitions = partitions
        self._ends: Mapping[str, tuple[int, ...]] = {}
        self._silent_since = 0.0  # monotonic; 0: the last look was answered
        self.watch = Periodic("log ends", self._look, LOOK_SECONDS)

    def _look(self) -> None:
        began, found = time.monotonic(), end_offsets(self._admin, self._partitions)
        self._silent_since = 0.0 if found else self._silent_since or began
        self._ends = {**self._ends, **found}

    def not_ready(self) -> str | None:
        """Return why nothing can be delivered, if no broker answered the last look."""
        since = self._silent_since
        return f"Kafka has not answered for {time.monotonic() - since:.0f} s" if since else None

    def of(self, topic: str, partition: int) -> int:
        """Return the log end offset of a partition; 0 as long as it is not known."""
        return self._ends[topic][partition] if topic in self._ends else 0
