"""The allow-list: to which real topics a producer group may write. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from outbox._rules.patterns import matches, rank

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

    def _allows(self, group: str, topic: str) -> bool:
        if self._topics is None:
            return True
        of_group = next((pattern for pattern in self._groups if matches(group, pattern)), None)
        return of_group is not None and any(matches(topic, pattern) for pattern in self._topics[of_group])


EVERYTHING = AllowList(None)
