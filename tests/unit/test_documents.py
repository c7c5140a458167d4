"""The documents say what is there: the README's example runs as it stands, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


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
