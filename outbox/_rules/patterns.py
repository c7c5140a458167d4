"""Patterns of names in settings: an exact name, or a prefix that ends in `*`."""

from __future__ import annotations


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a name."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def rank(pattern: str) -> tuple[bool, int]:
    """Return the rank of a pattern; the highest one that matches applies: an exact name, else the longest prefix."""
    return not pattern.endswith("*"), len(pattern)
