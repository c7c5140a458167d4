"""A pytest plugin that puts one mutant in place, here and in every child process, and tells how tests ended.

`pytest -p tests.mutants.runner.plugin --mutant r19_lowest_unsettled tests/unit/relay/test_ledger.py`
"""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.mutants.runner.catalogue import FOLDER, load

VARIABLE = "TESTS_MUTANT"
"""Names the mutant of a child process."""

_CHILD = Path(__file__).parent / "child"
_ROOT = FOLDER.parents[1]
_ENDINGS: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()


# The first example that fails will do, and it is none for the next run of the tests.
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)


def put_in_place(name: str) -> None:
    """Put a mutant in place in this process."""
    load(name).apply()


def child_environment(name: str) -> dict[str, str]:
    """The variables with which a Python process puts a mutant in place when it starts."""
    path = os.pathsep.join(map(str, filter(None, (_CHILD, _ROOT, os.environ.get("PYTHONPATH")))))
    return {VARIABLE: name, "PYTHONPATH": path}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which mutant, and where the report goes."""
    service = parser.getgroup("mutants")
    service.addoption("--mutant", metavar="NAME", help="the mutant under which the tests run")
    service.addoption("--mutant-report", type=Path, metavar="FILE", help="where to write how each test ended, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Put the mutant in place before any test is imported."""
    config.stash[_ENDINGS] = []
    settings.load_profile("mutants")
    name = config.getoption("mutant")
    if name:
        put_in_place(name)
        os.environ.update(child_environment(name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each phase of a test ended, but for those that were in order before and after the test itself."""
    report = yield
    if report.when == "call" or not report.passed:
        item.config.stash[_ENDINGS].append(
            {
                "test": item.nodeid,
                "outcome": report.outcome,
                "by_assertion": report.when == "call" and _is_assertion(call),
                "reason": "" if call.excinfo is None else call.excinfo.exconly()[:300],
            }
        )
    return report


def _is_assertion(call: pytest.CallInfo[None]) -> bool:
    """Whether a test failed because something is not as it must be; not because of an error, or out of time."""
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, pytest.fail.Exception):  # `pytest.raises` says that nothing was raised; so does a time-out
        return str(error).startswith("DID NOT RAISE")
    return isinstance(error, AssertionError)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the report."""
    path = config.getoption("mutant_report")
    if path is not None:
        path.write_text(json.dumps(config.stash[_ENDINGS], indent=2) + "\n")
