"""All mutants, from the tables beside this folder; the cheap ones first."""

from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from tests.mutants.runner.mutant import Harm, Mutant

FOLDER = Path(__file__).parents[1]

RULES = frozenset(
    {
        *(f"R{number}" for number in (3, 4, 5, 6, 8, 9, 10, 11, 15, 17, 18, 19, 22, 24, 25, 26, 27)),
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

_ROWS: dict[str, Mutant] = {}
_TESTS: dict[Callable[..., Any], list[str]] = defaultdict(list)

F = TypeVar("F", bound=Callable[..., Any])


def mutant(original: Callable[..., Any], rule: str, harm: Harm) -> Callable[[F], F]:
    """Make a function a mutant of its own name, by what it replaces, the rule, and what becomes of messages."""

    def enter(replacement: F) -> F:
        if replacement.__name__ in _ROWS:
            raise LookupError(f"two mutants are named {replacement.__name__}: rename one")
        tests = tuple(reversed(_TESTS.pop(replacement, [])))
        _ROWS[replacement.__name__] = Mutant(rule, harm, original, replacement, tests)
        return replacement

    return enter


def fails(test: str) -> Callable[[F], F]:
    """Name a test below tests/ that must fail with the mutant, by an assertion; without its parameters."""

    def enter(replacement: F) -> F:
        _TESTS[replacement].append(f"tests/{test}")
        return replacement

    return enter


def load(name: str) -> Mutant:
    """A mutant by its name; only its own table is imported, as a process that a test starts must not wait for all."""
    for table in _tables():
        if f"\ndef {name}(" in table.read_text():
            import_module(f"tests.mutants.{table.stem}")
    if name not in _ROWS:
        raise LookupError(f"there is no mutant {name!r}: see `python -m tests.mutants --list`")
    return _ROWS[name]


def catalogue() -> dict[str, Mutant]:
    """All mutants by name: those that unit tests catch, then the others."""
    for table in _tables():
        import_module(f"tests.mutants.{table.stem}")
    return dict(sorted(_ROWS.items(), key=lambda item: (not item[1].is_cheap, item[0])))


def _tables() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.py") if not path.stem.startswith("__"))
