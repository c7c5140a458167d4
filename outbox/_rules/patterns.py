"""Patterns of names in settings, exact or ending in `*`; and the allow-list of topics, which is made of them. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from outbox.protocol.names import PLATFORM_PREFIXES, PLATFORM_SUFFIXES


def matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def rank(pattern: str) -> tuple[bool, int]:
    """Return the rank of a pattern; the highest one that matches applies: an exact name, else the longest prefix."""
    return not pattern.endswith("*"), len(pattern)


def best_match(name: str, patterns: Mapping[str, Collection[str]]) -> str | None:
    """Return the key of the highest pattern that matches a name; None: none does."""
    found = [(rank(pattern), key) for key, some in patterns.items() for pattern in some if matches(name, pattern)]
    return max(found)[1] if found else None


EVERY_NAME = "*"

NO_LIST = "allowed_topics is not set, and the profile is production"
NO_LIST_FIX = (
    "list the topics of each service in allowed_topics, or set "
    'allowed_topics = { "*" = ["*"] } if every service may write to every topic'
)

PLATFORM_PATTERNS = (*(f"{prefix}*" for prefix in PLATFORM_PREFIXES), *(f"*{suffix}" for suffix in PLATFORM_SUFFIXES))
"""Names of topics of other platforms, which only an entry that names them allows (R63)."""


def lacks_list(profile: str, allowed: Mapping[str, Sequence[str]] | None) -> bool:
    """Return whether a profile requires an allow-list and there is none."""
    return allowed is None and profile == "production"


def allows_everything(allowed: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a service that no entry names may write to every topic."""
    return EVERY_NAME in allowed.get(EVERY_NAME, ())


def describe_services(allowed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a line for each pattern of services, with its patterns of topics."""
    for service, topics in sorted(allowed.items()):
        yield f"{service}: {', '.join(topics) or 'no topic'}"
