"""What the cluster says of topics, remembered for a while and shared by the threads of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from outbox.cluster import REQUEST_TIMEOUT, TopicDescription, describe_topics
from outbox.errors import KafkaUnreachable

REMEMBER_SECONDS = 30.0


class TopicCache:
    """Descriptions of topics; one that is missing is asked for again each time.

    Args:
        admin: Client of the cluster.
        timeout: Seconds that a look-up may wait for the cluster, or for a thread that is waiting for it.
    """

    def __init__(self, admin: AdminClient, timeout: float = REQUEST_TIMEOUT) -> None:
        self._admin = admin
        self._timeout = timeout
        self._known: dict[str, tuple[float, TopicDescription]] = {}
        self._lock = threading.Lock()

    def look_up(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Those of the topics that exist.

        Raises:
            KafkaUnreachable: The cluster does not answer.
            ConfigurationError: It refuses.
        """
        known = self._fresh(names)
        if len(known) < len(names):
            if not self._lock.acquire(timeout=self._timeout):
                raise KafkaUnreachable("Kafka does not answer: another thread is still waiting for it")
            try:
                self._ask([name for name in names if name not in self._fresh(names)])
                known = self._fresh(names)
            finally:
                self._lock.release()
        return known

    def forget(self) -> None:
        """Ask anew from now on: something that was sent to a topic failed."""
        self._known.clear()

    def _fresh(self, names: Collection[str]) -> dict[str, TopicDescription]:
        since = time.monotonic() - REMEMBER_SECONDS
        found = {name: self._known.get(name, (0.0, None)) for name in names}
        return {name: topic for name, (at, topic) in found.items() if topic is not None and at >= since}

    def _ask(self, names: list[str]) -> None:
        if names:
            now = time.monotonic()
            described = describe_topics(self._admin, names, self._timeout)
            self._known |= {name: (now, topic) for name, topic in described.items()}
