"""The failpoints that the owner of a table source passes, read from the code: a new one cannot be forgotten."""

import ast
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
OWNER = "relay.table.source_threads"

ELSEWHERE = {"relay.ending"}
"""Failpoints of what a table source does only after a hanging transaction: tests/integration/relay/test_hanging.py."""


def table_failpoints() -> list[str]:
    """Return the failpoints of all modules that a table source's thread imports, but for those in `ELSEWHERE`."""
    graph = grimp.build_graph("relay", "outbox", cache_dir=None)
    modules = {OWNER, *graph.find_upstream_modules(OWNER)}
    return sorted({name for module in modules for name in _failpoints(_file(module))} - ELSEWHERE)


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _failpoints(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint":
            yield ast.literal_eval(node.args[0])
