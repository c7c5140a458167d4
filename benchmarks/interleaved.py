"""Variants that run in turn: A B C A B C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

LEAST_ROUNDS = 3


def interleave(
    variants: Mapping[str, Callable[[], T]],
    rounds: int,
    between: Callable[[], None] = lambda: None,
    *,
    warm: bool = False,
) -> dict[str, list[T]]:
    """Run all variants in turn, so many times.

    Args:
        variants: What to run, by name; each returns what was measured.
        rounds: How many times; at least three, or there is no spread to speak of.
        warm: Whether a round before the first is run and thrown away.

    Returns:
        What each variant returned in each round.
    """
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"{rounds} rounds tell nothing of the spread: use at least {LEAST_ROUNDS}")
    measured: dict[str, list[T]] = {name: [] for name in variants}
    for _ in range(rounds + warm):
        for name, run in variants.items():
            measured[name].append(run())
            between()
    return {name: values[int(warm) :] for name, values in measured.items()}
