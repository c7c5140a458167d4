"""What the cluster says of topics, remembered for a while and shared by the threads of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from outbox.channel import TopicDescription, describe_topics

REMEMBER_SECONDS = 30.0


class TopicCache:
    """Descriptions of topics; one that is missing is asked for again each time.

    Args:
        admin: Client of the cluster.
    """

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._known: dict[str, tuple[float, TopicDescription]] = {}
        self._lock = threading.Lock()

    def look_up(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Those of the topics that exist.

        Raises:
            ConfigurationError: The cluster does not answer.
        """
        known = self._fresh(names)
        if len(known) < len(names):
            with self._lock:
                self._ask([name for name in names if name not in self._fresh(names)])
                known = self._fresh(names)
        return known

    def forget(self) -> None:
        """Ask anew from now on: something that was sent to a topic failed."""
        self._known.clear()

    def _fresh(self, names: Collection[str]) -> dict[str, TopicDescription]:
        since = time.monotonic() - REMEMBER_SECONDS
        found = {name: self._known[name] for name in names if name in self._known}
        return {name: description for name, (at, description) in found.items() if at >= since}

    def _ask(self, names: list[str]) -> None:
        if names:
            now = time.monotonic()
            self._known |= {name: (now, topic) for name, topic in describe_topics(self._admin, names).items()}
