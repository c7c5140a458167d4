"""The allow-list: to which real topics a service may write. Pure."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from outbox._rules.patterns import matches, rank
from outbox.protocol.names import is_platform_topic

_REMEMBERED = 4_096


class AllowList:
    """Which real topics a service may write to.

    Args:
        topics: Patterns of topics by pattern of service; the exact name of a service, else its longest prefix,
            counts alone, and a service without any may write to none. None: every service may write to every topic.
    """

    def __init__(self, topics: Mapping[str, Sequence[str]] | None) -> None:
        self._topics = topics
        self._services = sorted(topics or (), key=rank, reverse=True)
        self.allows = lru_cache(_REMEMBERED)(self._allows)
        """Whether a service may write to a topic."""
        self.protects = lru_cache(_REMEMBERED)(self._protects)
        """Whether a topic is one of another platform, and no pattern of the service names it (R63)."""

    def _allows(self, service: str, topic: str) -> bool:
        return self._topics is None or any(matches(topic, pattern) for pattern in self._patterns(service))

    def _protects(self, service: str, topic: str) -> bool:
        """Let only a pattern name such a topic that is its name, or begins like such a name, as `connect-*`."""
        if not is_platform_topic(topic):
            return False
        named = (pattern for pattern in self._patterns(service) if is_platform_topic(pattern.removesuffix("*")))
        return not any(matches(topic, pattern) for pattern in named)

    def _patterns(self, service: str) -> Sequence[str]:
        topics = self._topics or {}
        of_service = next((pattern for pattern in self._services if matches(service, pattern)), None)
        return () if of_service is None else topics[of_service]


EVERYTHING = AllowList(None)
