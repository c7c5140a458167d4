"""The floor plan: small folders, one role for a file name, no circle, small classes and functions."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.support.table_failpoints import table_failpoints
from tests.torture.processes import FAILPOINTS

ROOT = Path(__file__).parents[2]
PACKAGES = ("outbox", "relay", "checker", "spark_jobs", "stack")
MODULES = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

MOST_MODULES = 16
MOST_CLASS_LINES = 300
MOST_FUNCTION_LINES = 50
MOST_PARAMETERS = 8
LONGEST_TEST_NAME = 80

ROLES = {"cli", "settings", "service", "metrics", "job", "options", "errors", "self_check"}
"""File names that stand for one role, which several parts have."""

COMMANDS = {"acl", "channel", "console", "discarded", "doctor", "inbox", "skip", "table"}
"""A command in `outbox/operator/commands` has the name of what it works on."""

DOUBLES = {"async_outbox", "outbox", "participant"}
"""A double in `outbox/testing/_memory` has the name of what it takes the place of."""

DJANGO = {"admin", "apps", "models"}
"""Names that Django gives."""

LARGE: dict[str, str] = {
    "stack/servers.py Stack parameters": "its parameters are the options that users give",
}
"""What is larger than the bounds, and why."""


def _is_double(path: Path) -> bool:
    folder = path.parts[:-1]
    return (
        (folder == ("outbox", "operator", "commands") and path.stem in COMMANDS)
        or (folder == ("outbox", "testing", "_memory") and path.stem in DOUBLES)
        or (folder == ("outbox", "django") and path.stem in DJANGO)
    )


def test_no_folder_has_more_than_16_modules() -> None:
    folders = Counter(path.parent for path in MODULES if not path.stem.startswith("__"))
    assert {folder: count for folder, count in folders.items() if count > MOST_MODULES} == {}


def test_file_name_stands_for_one_role() -> None:
    places = defaultdict(list)
    for path in MODULES:
        if not path.stem.startswith("__") and path.stem not in ROLES and not _is_double(path):
            places[path.stem].append(str(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_import_each_other_in_one_direction(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=True)
    circles = graph.nominate_cycle_breakers(package)
    modules = {name for name in graph.modules if name.startswith(package)}
    loops = [name for name in modules if name in graph.find_upstream_modules(name)]
    assert (sorted(circles), loops) == ([], [])


def _large(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ClassDef):
            if _lines(node) > MOST_CLASS_LINES:
                yield f"{path} {node.name} lines"
            if any(_parameters(found) > MOST_PARAMETERS for found in node.body if isinstance(found, ast.FunctionDef)):
                yield f"{path} {node.name} parameters"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > MOST_FUNCTION_LINES:
            yield f"{path} {node.name} lines"


def _lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _parameters(function: ast.FunctionDef) -> int:
    """Return how many arguments a constructor takes without `self`; 0 for any other method."""
    given = function.args
    return len(given.args) + len(given.kwonlyargs) - 1 if function.name == "__init__" else 0


def test_no_class_and_no_function_is_large() -> None:
    large = {found for path in MODULES for found in _large(path)}
    assert large == set(LARGE)


def test_names_of_tests_are_short() -> None:
    """A new one has at most 60 characters, `test_<unit>_<condition>_<result>`; its docstring says why."""
    found = [
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if len(name) > LONGEST_TEST_NAME
    ]
    assert found == []


def test_each_file_that_a_module_reads_is_beside_it() -> None:
    """A module that moves takes its templates, lock files and settings with it."""
    named = {
        path.with_name(name): str(path)
        for path in MODULES
        for name in re.findall(r'Path\(__file__\)\.with_name\("([^"]+)"\)', (ROOT / path).read_text())
    }
    assert len(named) > 5
    assert {str(file): module for file, module in named.items() if not (ROOT / file).is_file()} == {}


def test_each_failpoint_of_a_table_source_is_tortured() -> None:
    assert set(table_failpoints()) <= FAILPOINTS["relay"].keys()
