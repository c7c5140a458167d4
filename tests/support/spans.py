"""Spans of time, and how much of another span they cover. Pure."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> Sequence[Span]:
    """Return the same moments as spans that do not overlap."""
    found: list[Span] = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((began, ended))
    return found


def covered(spans: Iterable[Span], since: float, until: float) -> float:
    """Return how much of a span of time merged spans cover, s."""
    return sum(max(0.0, min(ended, until) - max(began, since)) for began, ended in spans)
