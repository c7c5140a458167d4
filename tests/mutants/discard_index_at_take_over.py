"""Discard index: what lies in the discard topic is known before anything else is read.

A new owner that does not know what is parked takes the decision on it for one on halves that were settled long ago, and
drops it: the message stays where it is, lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from outbox.protocol.discard import Manifest
from relay.ledger.ledger import Ledger
from tests.mutants.runner.mutant import Harm, Mutant


def restore_discards(self: Ledger, manifests: Iterable[Manifest]) -> None:
    """Begin with an empty index."""
    del self, manifests


MUTANT = Mutant(
    "discard index",
    Harm.LOST,
    Ledger.restore_discards,
    restore_discards,
    ("tests/unit/relay/test_discards.py::test_a_commit_whose_effect_was_not_committed_has_it_after_the_crash",),
)
