"""Real topics as the cluster described them, for those who publish: an old description serves while it is renewed."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import describe_targets, end_offsets
from outbox._rules.topic_description import TopicDescription

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
        timeout: Seconds for one request.
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
