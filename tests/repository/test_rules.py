"""Every rule and hole that the code names stands in docs/reliability.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("outbox", "relay", "checker", "spark_jobs", "stack")


def _named(pattern: str) -> dict[str, str]:
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {number: str(file.relative_to(ROOT)) for file in files for number in re.findall(pattern, file.read_text())}


def _defined(letter: str) -> set[str]:
    return set(re.findall(rf"^\| ({letter}\d+) \|", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE))


def test_every_rule_that_the_code_names_is_defined() -> None:
    named = _named(r"\bR\d{1,2}\b")
    assert named
    assert {number: place for number, place in named.items() if number not in _defined("R")} == {}


def test_every_hole_that_the_code_names_is_defined() -> None:
    named = _named(r"\bH\d{1,2}\b")
    assert named
    assert {number: place for number, place in named.items() if number not in _defined("H")} == {}


def test_the_rules_name_modules_that_exist() -> None:
    text = (ROOT / "docs/reliability.md").read_text()
    places = re.findall(r"`((?:outbox|relay|checker)/[\w/]+\.py)`", text)
    assert places
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_each_rule_names_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (R\d+) \|.*\| (`.*`) \|.*\|$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert {rule for rule, _ in rows} == _defined("R")
    missing = {
        rule: name for rule, named in rows for name in re.findall(r"`(\w+)`", named) if f"def {name}(" not in tests
    }
    assert missing == {}
