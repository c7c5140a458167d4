"""What the cluster says of topics, remembered for a while and shared by the threads of a process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

from outbox.cluster import REQUEST_TIMEOUT, TopicDescription, describe_topics, end_offsets
from outbox.errors import KafkaUnreachable

REMEMBER_SECONDS = 30.0
_ENDS_SECONDS = 1.0
"""How long a look-up may take longer for the ends, which are only good to have."""


class TopicCache:
    """Descriptions of topics; one that is missing is asked for again each time.

    Args:
        admin: Client of the cluster.
        timeout: Seconds that a look-up may wait for the cluster, or for a thread that is waiting for it.
        beside: Topics that are looked up along with any other. If there are some, the ends of all are learned, too.
        writing: Whether this process writes to them, see `describe_topics`.
    """

    def __init__(
        self,
        admin: AdminClient,
        timeout: float = REQUEST_TIMEOUT,
        beside: Collection[str] = frozenset(),
        *,
        writing: bool = False,
    ) -> None:
        self._admin = admin
        self._timeout = timeout
        self._beside = frozenset(beside)
        self._writing = writing
        self._known: dict[str, tuple[float, TopicDescription]] = {}
        self._ends: Mapping[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()
        self._changing = threading.Lock()  # never held while the cluster is asked

    @property
    def ends(self) -> Mapping[str, tuple[int, ...]]:
        """The end offset of each partition of the topics that were looked up, when they were; it never changes.

        A topic whose ends are not known is missing. What is written after a look-up lies at or behind the ends.
        """
        return self._ends

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
        if not self._lock.acquire(timeout=self._timeout):
            raise KafkaUnreachable("Kafka does not answer: another thread is still waiting for it")
        try:
            yield
        finally:
            self._lock.release()

    def remembered(self, name: str) -> TopicDescription | None:
        """A topic, if it need not be asked for; never waits."""
        at, topic = self._known.get(name, (-math.inf, None))
        return topic if at >= time.monotonic() - REMEMBER_SECONDS else None

    def seen(self) -> dict[str, int]:
        """The topics that were ever seen here, with the partitions that each had; some may be gone."""
        with self._changing:
            return {name: topic.partitions for name, (_, topic) in self._known.items()}

    def forget(self) -> None:
        """Ask anew from now on: something that was sent to a topic failed."""
        with self._changing:
            self._known = {name: (-math.inf, topic) for name, (_, topic) in self._known.items()}

    def _fresh(self, names: Collection[str]) -> dict[str, TopicDescription]:
        since = time.monotonic() - REMEMBER_SECONDS
        found = {name: self._known.get(name, (-math.inf, None)) for name in names}
        return {name: topic for name, (at, topic) in found.items() if topic is not None and at >= since}

    def _ask(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Those of the topics that exist, asked for now, and remembered with those beside."""
        if not names:
            return {}
        now = time.monotonic()
        described = describe_topics(self._admin, [*self._beside.union(names)], self._timeout, writing=self._writing)
        if self._beside:
            self._learn_ends(described)
        with self._changing:
            self._known |= {name: (now, topic) for name, topic in described.items()}
        return {name: described[name] for name in names if name in described}

    def _learn_ends(self, described: Mapping[str, TopicDescription]) -> None:
        """Ends that cannot be learned stay what they were, for a topic that is still the same: they only rise."""
        partitions = {name: topic.partitions for name, topic in described.items()}
        known = {name: ends for name, ends in self._ends.items() if self._is_same(name, described)}
        self._ends = known | end_offsets(self._admin, partitions, min(self._timeout, _ENDS_SECONDS))

    def _is_same(self, name: str, described: Mapping[str, TopicDescription]) -> bool:
        return name not in described or (name in self._known and self._known[name][1].id == described[name].id)
