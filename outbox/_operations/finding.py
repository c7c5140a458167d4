"""What an examination finds: `outbox doctor`, and `--check` of a service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination.

    Args:
        problem: What is wrong; empty if it is fine.
        fix: What to do; for a fine one, a word on what was seen.
    """

    what: str
    problem: str
    fix: str

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


class Silence(Finding):
    """Kafka does not answer. What else could be asked of it would take as long, and is not asked."""

    __slots__ = ()


def is_silent(found: Iterable[Finding]) -> bool:
    """Return whether an examination found that Kafka does not answer."""
    return any(isinstance(one, Silence) for one in found)
