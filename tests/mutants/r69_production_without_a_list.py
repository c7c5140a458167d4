"""R69: in production a relay serves a channel only with an allow-list.

Without it, a file from which the list was lost, by a slip or while it is written, opens every topic to every group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.settings import require_allow_list
from tests.mutants.runner.mutant import Harm, Mutant


def _without_a_list(profile: str, allowed: Mapping[str, Sequence[str]] | None, channel: str = "") -> None:
    """Start without a list, too."""
    del profile, allowed, channel


MUTANT = Mutant(
    "R69",
    Harm.PHANTOM,
    require_allow_list,
    _without_a_list,
    ("tests/unit/relay/test_reload.py::test_production_requires_a_list_and_takes_the_explicit_word",),
)
