"""Patterns of names in settings: an exact name, or a prefix that ends in `*`. Pure."""

from __future__ import annotations


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern is of this name."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def rank(pattern: str) -> tuple[bool, int]:
    """Of several patterns of a name the one with the highest rank counts: an exact name, else the longest prefix."""
    return not pattern.endswith("*"), len(pattern)
