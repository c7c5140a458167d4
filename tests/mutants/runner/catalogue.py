"""All mutants, by the names of their files, the cheap ones first."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.mutants.runner.mutant import Mutant

FOLDER = Path(__file__).parents[1]

RULES = frozenset(
    {
        *(
            "R3",
            "R4",
            "R5",
            "R6",
            "R8",
            "R9",
            "R10",
            "R11",
            "R15",
            "R17",
            "R18",
            "R19",
            "R22",
            "R24",
            "R25",
            "R26",
            "R27",
        ),
        "flush before offsets",
        "op position",
        "due time at restore",
        "giving up after _FENCED",
        "discard index",
        "never pausing both partitions",
    }
)
"""The rules that must have a mutant; others may."""

OPEN: dict[str, str] = {}
"""Rules that no mutant shows to be tested, or not as a whole, and why."""


def names() -> list[str]:
    """The names of all mutants."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("__"))


def load(name: str) -> Mutant:
    """A mutant by its name.

    Raises:
        LookupError: There is none of this name.
    """
    if name not in names():
        raise LookupError(f"there is no mutant {name!r}: see `python -m tests.mutants --list`")
    found = import_module(f"tests.mutants.{name}").MUTANT
    assert isinstance(found, Mutant)
    return found


def catalogue() -> dict[str, Mutant]:
    """All mutants by name: those that unit tests catch, then the others."""
    found = {name: load(name) for name in names()}
    return dict(sorted(found.items(), key=lambda item: (not item[1].is_cheap, item[0])))
