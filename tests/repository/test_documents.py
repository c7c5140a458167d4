"""The documents say what is there: the README's example runs as it stands, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_readme_shows_the_quickstart_as_it_is() -> None:
    program = (ROOT / "examples/quickstart.py").read_text().partition('"""\n\n')[2]
    assert program in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_makefile_has_what_the_readme_names() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for document in DOCUMENTS for target in re.findall(r"make ([a-z][a-z0-9-]*)", document.read_text())}
    assert named <= targets | {"it", "the"}


def _anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_anchors_are_headings(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text())
    targets = [(document.parent / path if path else document, anchor) for path, anchor in links]
    assert [anchor for target, anchor in targets if anchor not in _anchors(target)] == []


def test_each_test_that_is_named_for_a_behaviour_of_rocketmq_exists() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    rows = [line for line in (ROOT / "docs/rocketmq.md").read_text().splitlines() if re.match(r"\| \d+b? \|", line)]
    without = [row[:60] for row in rows if not re.search(r"`test_\w+`", row.split("|")[-2])]
    named = {name for row in rows for name in re.findall(r"`(test_\w+)`", row.split("|")[-2])}
    assert without == []
    assert sorted(name for name in named if f"def {name}(" not in tests) == []


@pytest.mark.parametrize("picture", ["verdicts.svg", "latencies.svg"])
def test_the_pictures_of_the_audit_are_those_of_its_report(picture: str) -> None:
    audit = ROOT / "docs/audit"
    assert (audit / picture).read_text() in (audit / "report.html").read_text()
