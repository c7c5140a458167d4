"""Every rule has a mutant that fits, and those that unit tests catch are caught; `make mutants` runs the others too."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.runner.catalogue import OPEN, RULES, catalogue
from tests.mutants.runner.mutant import Harm, Mutant
from tests.mutants.runner.plugin import VARIABLE, child_environment
from tests.mutants.runner.run import Verdict, judge

ROOT = Path(__file__).parents[2]
NAMES = sorted(catalogue())
TEST = "tests/unit/test_x.py::test_y"


def test_every_rule_has_a_mutant() -> None:
    assert {mutant.rule for mutant in catalogue().values()} >= RULES
    assert OPEN.keys() <= RULES


def test_the_document_names_the_module_that_holds_a_rule() -> None:
    table = re.findall(r"^\| (R\d+) \|.*\|(.*)\|$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
    places = dict(table)
    numbered = [mutant for mutant in catalogue().values() if re.fullmatch(r"R\d+", mutant.rule)]
    found = {(mutant.rule, mutant.target.partition(":")[0].replace(".", "/")) for mutant in numbered}
    assert sorted((rule, module) for rule, module in found if f"`{module}.py`" not in places[rule]) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_fits_into_the_place_of_shipped_code(name: str) -> None:
    mutant = catalogue()[name]
    assert mutant.differences() == ""
    assert mutant.target.partition(".")[0] in {"outbox", "relay", "checker", "spark_jobs"}
    assert mutant.replacement is not mutant.original


@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_says_its_rule_and_what_goes_wrong_without_it(name: str) -> None:
    rule, _, harm = catalogue()[name].why.partition(". ")
    assert len(rule) > 20
    assert len(harm) > 60


@pytest.mark.parametrize("name", NAMES)
def test_the_tests_that_catch_a_mutant_exist(name: str) -> None:
    tests = catalogue()[name].tests
    assert tests
    for test in tests:
        path, _, function = test.partition("::")
        found = [node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)]
        (node,) = [node for node in found if node.name == function]
        marks = [ast.unparse(decorator) for decorator in node.decorator_list]
        assert "pytest.mark.long" not in marks, "`make test-all` must show that it passes without the mutant"


@pytest.mark.long
def test_those_that_unit_tests_catch_are_caught(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.mutants",
        "--cheap",
        "--no-check",
        "--report",
        str(tmp_path / "report.json"),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def _child(name: str) -> subprocess.CompletedProcess[str]:
    program = (
        "from relay.half.serving.restore import parse_op_checkpoint; "
        "from relay.half.ledger.partition_progress import OpProgress; print(OpProgress.checkpoint)"
    )
    environment = {**os.environ, **child_environment(name)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_a_process_that_a_test_starts_gets_the_mutant_too() -> None:
    assert child_environment("op_position")[VARIABLE] == "op_position"
    assert "OpProgress.checkpoint" in _child("r19_lowest_unsettled").stdout
    assert "OpProgress.checkpoint" not in _child("op_position").stdout


def test_a_process_without_its_mutant_does_not_go_on() -> None:
    run = _child("no_such_mutant")
    assert run.returncode != 0
    assert "no_such_mutant" in run.stderr


def original(number: int, /, *, more: str = "") -> str:
    return f"{number}{more}"


def _other_name(count: int, /, *, more: str = "") -> str:
    return f"{count}{more}"


def _other_default(number: int, /, *, more: str = "x") -> str:
    return f"{number}{more}"


def _other_type(number: str, /, *, more: str = "") -> str:
    return f"{number}{more}"


@pytest.mark.parametrize("replacement", [_other_name, _other_default, _other_type])
def test_a_replacement_of_another_signature_does_not_fit(replacement: Any) -> None:
    assert Mutant("R1", Harm.LOST, original, replacement, (TEST,)).differences()


def ending(test: str, outcome: str, *, by_assertion: bool = False) -> dict[str, Any]:
    return {"test": test, "outcome": outcome, "by_assertion": by_assertion, "reason": "why"}


PASSED, FAILED = ending(TEST, "passed"), ending(TEST, "failed", by_assertion=True)


@pytest.mark.parametrize(
    ("endings", "verdict"),
    [
        ([FAILED], Verdict.CAUGHT),
        ([ending(f"{TEST}[1]", "passed"), ending(f"{TEST}[2]", "failed", by_assertion=True)], Verdict.CAUGHT),
        ([PASSED], Verdict.SURVIVED),
        ([], Verdict.SURVIVED),
        ([ending("tests/unit/test_x.py::test_z", "failed", by_assertion=True)], Verdict.SURVIVED),
        ([ending(TEST, "skipped")], Verdict.UNCLEAR),
        ([ending(TEST, "failed")], Verdict.UNCLEAR),
        ([FAILED, ending(f"{TEST}[2]", "failed")], Verdict.UNCLEAR),
        (None, Verdict.UNCLEAR),
    ],
)
def test_a_mutant_is_caught_by_an_assertion_of_each_test_and_by_nothing_else(
    endings: list[dict[str, Any]] | None, verdict: Verdict
) -> None:
    assert judge((TEST,), endings)[0] is verdict
