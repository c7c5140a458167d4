"""A mutant: one function of the shipped code, and the one that takes its place."""

import enum
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg


class Harm(enum.StrEnum):
    """What becomes of messages without a rule."""

    LOST = "lost"
    DOUBLED = "doubled"
    PHANTOM = "phantom"
    OUT_OF_ORDER = "out of order"
    STUCK = "stuck"


@dataclass(frozen=True)
class Mutant:
    """A function without its rule. The docstring of the replacement says what goes wrong then."""

    rule: str  # the rule's number in docs/reliability.md, or what it is about
    harm: Harm
    original: Callable[..., Any]
    replacement: Callable[..., Any]
    tests: tuple[str, ...]  # ids of tests, each of which fails then, by an assertion; without their parameters

    @property
    def target(self) -> str:
        """Where the original is: `module:name`, or `module:class.name`."""
        return f"{self.original.__module__}:{self.original.__qualname__}"

    @property
    def why(self) -> str:
        """The rule, and what goes wrong without it."""
        return " ".join((inspect.getdoc(self.replacement) or "").split())

    @property
    def is_cheap(self) -> bool:
        """Whether unit tests catch it: no server is needed."""
        return all(test.startswith("tests/unit/") for test in self.tests)

    def differences(self) -> str:
        """How the signatures of the two differ; empty if they do not."""
        ours, theirs = (_signature(function) for function in (self.replacement, self.original))
        return "" if ours == theirs else f"{ours} is not {theirs}"

    def apply(self) -> None:
        """Put the replacement in the original's place, for this process."""
        path = self.original.__qualname__.split(".")
        owner: object = sys.modules[self.original.__module__]
        for name in path[:-1]:
            owner = getattr(owner, name)
        if getattr(owner, path[-1]) is not self.original:
            raise LookupError(f"{self.target} is something else by now")
        if inspect.isclass(owner):
            setattr(owner, path[-1], self.replacement)
        else:
            self._replace_everywhere()

    def _replace_everywhere(self) -> None:
        """A function is also known in the modules that import it by name."""
        for name, module in list(sys.modules.items()):
            if name.startswith("tests.mutants"):
                continue
            for key, value in list(vars(module).items()):
                if value is self.original:
                    setattr(module, key, self.replacement)


def _signature(function: Callable[..., Any]) -> str:
    """Names, kinds and defaults of the parameters, and the types of all but `self`, which a function must name."""
    # Either file may postpone its annotations, and import psycopg for them only.
    found = inspect.signature(function, locals={"psycopg": psycopg}, eval_str=True)
    parameters = [
        parameter.replace(annotation=parameter.empty) if parameter.name == "self" else parameter
        for parameter in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters))
