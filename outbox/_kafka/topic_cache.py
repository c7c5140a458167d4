"""Descriptions of topics, remembered for a while and shared by the threads of a process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import REQUEST_TIMEOUT, describe_targets, refresh_brokers
from outbox._rules.topic_description import TopicDescription
from outbox.errors import KafkaUnreachable

REMEMBER_SECONDS = 30.0
ATTEMPT_SECONDS = 2.0
"""Time for an answer. A broker that is being stopped still takes requests, and answers none: another one is asked."""


class TopicCache:
    """Descriptions of topics to which messages go; one that is missing is described again each time.

    Args:
        writing: Whether this process writes to them, see `describe_targets`.
    """

    def __init__(self, admin: AdminClient, *, writing: bool = False) -> None:
        self._admin = admin
        self._writing = writing
        self._remembered: dict[str, tuple[float, TopicDescription]] = {}
        self._lock = threading.Lock()
        self._changing = threading.Lock()  # never held while the cluster is asked

    def describe(self, names: Collection[str], since: float = -math.inf) -> dict[str, TopicDescription]:
        """Return the descriptions of those topics that exist; they are at most `REMEMBER_SECONDS` old.

        Args:
            since: Older descriptions do not count; monotonic s.
        """
        found = self._fresh(names, since)
        if len(found) < len(names):
            with self._one_thread():
                # What was found stays found: meanwhile it may expire, or another thread may have all forgotten.
                found |= self._fresh(names, since)
                found |= self._fetch(set(names) - set(found))
        return found

    def describe_again(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """As `describe`, but from Kafka, whatever is remembered."""
        with self._one_thread():
            return self._fetch(names)

    @contextmanager
    def _one_thread(self) -> Iterator[None]:
        """Let one thread at a time send requests."""
        if not self._lock.acquire(timeout=REQUEST_TIMEOUT):
            raise KafkaUnreachable(
                f"Kafka did not describe topics within {REQUEST_TIMEOUT:g} s: another thread of this process still "
                "waits for its answer. Check that Kafka is up, and try again."
            )
        try:
            yield
        finally:
            self._lock.release()

    def described(self) -> dict[str, int]:
        """Return the topics that were ever described, with the partitions that each had; some may be gone."""
        with self._changing:
            return {name: topic.partitions for name, (_, topic) in self._remembered.items()}

    def forget(self) -> None:
        """Describe all topics again from now on: something that was sent to a topic failed."""
        with self._changing:
            self._remembered = {name: (-math.inf, topic) for name, (_, topic) in self._remembered.items()}

    def _fresh(self, names: Collection[str], since: float) -> dict[str, TopicDescription]:
        since = max(time.monotonic() - REMEMBER_SECONDS, since)
        found = {name: self._remembered.get(name, (-math.inf, None)) for name in names}
        return {name: topic for name, (at, topic) in found.items() if topic is not None and at >= since}

    def _fetch(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Return the descriptions of those topics that exist, from Kafka, and remember them."""
        if not names:
            return {}
        deadline = time.monotonic() + REQUEST_TIMEOUT
        while True:
            now = time.monotonic()
            try:
                described = describe_targets(self._admin, names, ATTEMPT_SECONDS, writing=self._writing)
                break
            except KafkaUnreachable:
                if time.monotonic() >= deadline:
                    raise
                refresh_brokers(self._admin)
        with self._changing:
            self._remembered |= {name: (now, topic) for name, topic in described.items()}
        return described
