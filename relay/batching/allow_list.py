"""The allow-list: to which real topics a producer group may write. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from outbox._rules.patterns import matches, rank
from outbox.protocol.names import is_platform_topic

_REMEMBERED = 4_096


class AllowList:
    """Which real topics a producer group may write to.

    Args:
        topics: Patterns of topics by pattern of producer group; the exact name of a group, else its longest prefix,
            counts alone, and a group without any may write to none. None: every group may write to every topic.
    """

    def __init__(self, topics: Mapping[str, Sequence[str]] | None) -> None:
        self._topics = topics
        self._groups = sorted(topics or (), key=rank, reverse=True)
        self.allows = lru_cache(_REMEMBERED)(self._allows)
        """Whether a producer group may write to a topic."""
        self.protects = lru_cache(_REMEMBERED)(self._protects)
        """Whether a topic is one of another platform, and no pattern of the producer group names it (R63)."""

    def _allows(self, group: str, topic: str) -> bool:
        return self._topics is None or any(matches(topic, pattern) for pattern in self._patterns(group))

    def _protects(self, group: str, topic: str) -> bool:
        """Let only a pattern name such a topic that is its name, or begins like such a name, as `connect-*`."""
        if not is_platform_topic(topic):
            return False
        named = (pattern for pattern in self._patterns(group) if is_platform_topic(pattern.removesuffix("*")))
        return not any(matches(topic, pattern) for pattern in named)

    def _patterns(self, group: str) -> Sequence[str]:
        """Return the patterns of topics that count for a producer group."""
        topics = self._topics or {}
        of_group = next((pattern for pattern in self._groups if matches(group, pattern)), None)
        return () if of_group is None else topics[of_group]


EVERYTHING = AllowList(None)
