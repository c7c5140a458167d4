"""Each alert rule fires where it must and is silent where it must be, as Prometheus itself evaluates it."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.promtool import promtool

ALERTS = Path(__file__).parents[2] / "docs/alerts.yml"
RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
CASES: Mapping[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("alert_cases.yml").read_text())
TICK = "15s"


def _test(name: str, case: Mapping[str, Any]) -> dict[str, Any]:
    expected, rule = [], RULES[name]
    if "fires" in case:
        annotations = {**rule["annotations"], "summary": case.get("says", rule["annotations"]["summary"])}
        expected = [{"exp_labels": {**rule["labels"], **case["fires"]}, "exp_annotations": annotations}]
    return {
        "interval": TICK,
        "input_series": [{"series": series, "values": str(values)} for series, values in case["series"].items()],
        "alert_rule_test": [{"eval_time": case["at"], "alertname": name, "exp_alerts": expected}],
    }


def _run(folder: Path, name: str, rule: Mapping[str, Any]) -> str:
    """What promtool has to say against the cases of a rule, which is evaluated alone; empty: nothing."""
    rules, file = folder / "rule.yml", folder / "test.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [dict(rule)]}]}))
    tests = [_test(name, case) for case in CASES[name]]
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": TICK, "tests": tests}))
    done = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    assert list(CASES) == list(RULES)
    assert [name for name, cases in CASES.items() if {"fires" in case for case in cases} != {True, False}] == []


@pytest.mark.parametrize("name", CASES)
def test_a_rule_fires_and_is_silent(name: str, tmp_path: Path) -> None:
    assert _run(tmp_path, name, RULES[name]) == ""


def test_a_rule_that_does_not_fire_is_found(tmp_path: Path) -> None:
    blunt = {**RULES["OutboxRealTopicRefuses"], "expr": "sum by (channel) (outbox_relay_waiting) > 0"}
    assert "Rows of table source shop wait" in _run(tmp_path, "OutboxRealTopicRefuses", blunt)


def test_the_whole_file_is_right() -> None:
    done = subprocess.run([promtool(), "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert (done.returncode, f"{len(RULES)} rules found" in done.stdout) == (0, True), done.stderr
