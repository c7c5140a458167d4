"""Waiting for a take-over: what is given up while its producer is being initialised is waited for.

A producer that comes after the half partition has its next owner fences that one, which gives way until the group has a
new generation.
"""

from __future__ import annotations

from collections.abc import Collection

from relay.serving.fencing import Fencing
from tests.mutants.runner.mutant import Harm, Mutant


def drop(self: Fencing, numbers: Collection[int]) -> None:
    """Nobody will ask for it."""
    for number in numbers:
        self._begun.pop(number, None)


MUTANT = Mutant(
    "waiting for a take-over",
    Harm.STUCK,
    Fencing.drop,
    drop,
    ("tests/unit/relay/test_fencing.py::test_no_producer_comes_after_its_half_partition_was_given_up",),
)
