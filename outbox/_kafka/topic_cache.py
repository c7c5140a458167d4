"""Descriptions of topics, remembered for a while and shared by the threads of a process."""

import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import REQUEST_TIMEOUT, describe_targets, end_offsets
from outbox._rules.topic_description import TopicDescription
from outbox.errors import KafkaUnreachable

REMEMBER_SECONDS = 30.0


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
        """Return the descriptions of those topics that exist, not older than `since` or `REMEMBER_SECONDS`."""
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
        now = time.monotonic()
        described = describe_targets(self._admin, names, writing=self._writing)
        with self._changing:
            self._remembered |= {name: (now, topic) for name, topic in described.items()}
        return described


FRESH_SECONDS = 30.0
"""A description that is older is renewed in the background."""

USABLE_SECONDS = 300.0
"""A description that is older is of no use: the topic may have been deleted long ago."""

RETRY_SECONDS = 10.0
"""Time between two attempts to renew a description."""

_ENDS_SECONDS = 1.0
"""Time limit for the ends, which are only good to have."""


class KnownTopics:
    """Descriptions of topics. One thread asks for them; any thread may read them.

    Args:
        timeout: Seconds for a description, see `describe_topics`.
        beside: Topics that are described along with any other, and whose ends are learned.
    """

    def __init__(self, admin: AdminClient, timeout: float, beside: Collection[str]) -> None:
        self._admin = admin
        self._timeout = timeout
        self._beside = frozenset(beside)
        self._known: dict[str, tuple[float, TopicDescription]] = {}
        self._tried: dict[str, float] = {}
        self._ends: Mapping[str, tuple[int, ...]] = {}

    @property
    def ends(self) -> Mapping[str, tuple[int, ...]]:
        """Return the end offset of each partition of the topics of `beside`, as of their description; it never changes.

        A topic whose ends are not known is missing. What is written after `ask()` is at or behind the ends.
        """
        return self._ends

    def usable(self, name: str) -> TopicDescription | None:
        """Return a description that is not too old; never waits."""
        at, topic = self._known.get(name, (-math.inf, None))
        return topic if at >= time.monotonic() - USABLE_SECONDS else None

    def is_due(self, name: str) -> bool:
        """Return whether a description is to be renewed: not fresh any more, and not tried a moment ago."""
        at, _ = self._known.get(name, (-math.inf, None))
        now = time.monotonic()
        return at < now - FRESH_SECONDS and self._tried.get(name, -math.inf) < now - RETRY_SECONDS

    def ask(self, name: str) -> TopicDescription | None:
        """Ask the cluster for a topic now, and keep the answer; None if there is no such topic."""
        now = time.monotonic()
        self._tried = {**self._tried, name: now}
        described = describe_targets(self._admin, self._beside.union([name]), self._timeout)
        self._learn_ends(described)
        kept = {known: entry for known, entry in self._known.items() if known != name}
        self._known = kept | {found: (now, topic) for found, topic in described.items()}
        return described.get(name)

    def _learn_ends(self, described: Mapping[str, TopicDescription]) -> None:
        """Read end offsets; those that cannot be read stay unchanged for a topic with the same id: they only rise."""
        partitions = {name: described[name].partitions for name in self._beside & described.keys()}
        known = {name: ends for name, ends in self._ends.items() if self._is_same(name, described)}
        self._ends = known | end_offsets(self._admin, partitions, min(self._timeout, _ENDS_SECONDS))

    def _is_same(self, name: str, described: Mapping[str, TopicDescription]) -> bool:
        return name not in described or (name in self._known and self._known[name][1].id == described[name].id)
