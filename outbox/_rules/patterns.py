"""Patterns of names in settings: an exact name, or a prefix that ends in `*`."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a name."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def rank(pattern: str) -> tuple[bool, int]:
    """Return the rank of a pattern; the highest one that matches applies: an exact name, else the longest prefix."""
    return not pattern.endswith("*"), len(pattern)


def best_match(name: str, patterns: Mapping[str, Collection[str]]) -> str | None:
    """Return the key of the highest pattern that matches a name; None: none does."""
    found = [(rank(pattern), key) for key, some in patterns.items() for pattern in some if matches(name, pattern)]
    return max(found)[1] if found else None
