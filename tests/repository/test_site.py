"""The site of the documents: it builds without a warning, and every public name and every error has its place."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import outbox
import outbox.errors

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
NAMES = sorted(outbox._HOMES)
ERRORS = [name for name, found in vars(outbox.errors).items() if inspect.isclass(found)]


def test_each_public_name_has_an_entry() -> None:
    text = "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    assert [name for name in NAMES if not re.search(rf"^::: outbox(?:\.\w+)?\.{name}$", text, re.MULTILINE)] == []


@pytest.mark.parametrize("name", ERRORS)
def test_error_has_a_section_that_says_more_than_its_docstring(name: str) -> None:
    _, _, section = (REFERENCE / "errors.md").read_text().partition(f"\n## {name}\n")
    words = section.partition("\n:::")[0].split()
    assert len(words) > 10, f"docs/reference/errors.md has no section about {name}"


@pytest.mark.long
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
