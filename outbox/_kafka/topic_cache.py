"""Descriptions of topics, remembered for a while and shared by the threads of a process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import REQUEST_TIMEOUT, describe_targets
from outbox._rules.topic_description import TopicDescription
from outbox.errors import KafkaUnreachable

REMEMBER_SECONDS = 30.0


class TopicCache:
    """Descriptions of topics to which messages go; one that is missing is asked for again each time.

    Args:
        admin: Client of the cluster.
        writing: Whether this process writes to them, see `describe_targets`.
    """

    def __init__(self, admin: AdminClient, *, writing: bool = False) -> None:
        self._admin = admin
        self._writing = writing
        self._known: dict[str, tuple[float, TopicDescription]] = {}
        self._lock = threading.Lock()
        self._changing = threading.Lock()  # never held while the cluster is asked

    def look_up(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Those of the topics that exist.

        Raises:
            KafkaUnreachable: The cluster does not answer.
            ConfigurationError: It refuses.
        """
        known = self._fresh(names)
        if len(known) < len(names):
            with self._asking():
                # What was seen here stays seen: meanwhile it may expire, or another thread may have all forgotten.
                known |= self._fresh(names)
                known |= self._ask(set(names) - set(known))
        return known

    def look_again(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """As `look_up`, but whatever is remembered: what these topics are now is wanted."""
        with self._asking():
            return self._ask(names)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """One thread asks at a time."""
        if not self._lock.acquire(timeout=REQUEST_TIMEOUT):
            raise KafkaUnreachable(
                f"Kafka did not describe topics within {REQUEST_TIMEOUT:g} s: another thread of this process still "
                "waits for its answer. Check that Kafka is up, and try again."
            )
        try:
            yield
        finally:
            self._lock.release()

    def seen(self) -> dict[str, int]:
        """Return the topics that were ever seen here, with the partitions that each had; some may be gone."""
        with self._changing:
            return {name: topic.partitions for name, (_, topic) in self._known.items()}

    def forget(self) -> None:
        """Ask again from now on: something that was sent to a topic failed."""
        with self._changing:
            self._known = {name: (-math.inf, topic) for name, (_, topic) in self._known.items()}

    def _fresh(self, names: Collection[str]) -> dict[str, TopicDescription]:
        since = time.monotonic() - REMEMBER_SECONDS
        found = {name: self._known.get(name, (-math.inf, None)) for name in names}
        return {name: topic for name, (at, topic) in found.items() if topic is not None and at >= since}

    def _ask(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Those of the topics that exist, asked for now, and remembered."""
        if not names:
            return {}
        now = time.monotonic()
        described = describe_targets(self._admin, names, REQUEST_TIMEOUT, writing=self._writing)
        with self._changing:
            self._known |= {name: (now, topic) for name, topic in described.items()}
        return described
