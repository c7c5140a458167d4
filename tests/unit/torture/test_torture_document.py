"""The document about the torture says what its report says, and claims no more than the rule of three allows."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.support.reports import PLACE
from tests.torture.document import FOLDER, document, keep, main, repeated_of, restarts_of, verdict
from tests.torture.outage import OutageResult
from tests.torture.run import Result

ENVIRONMENT = {**PLACE, "command": "python -m tests.torture --seed 3", "versions": {"Python": "3.11"}}


@pytest.fixture
def report() -> dict[str, Any]:
    result = Result(3, ENVIRONMENT, rounds=2, transactions=60_000, seconds=3_601.2)
    result.faults.update({"relay killed": 300, "EndTxn kept": 1})
    result.outcomes.update({"late EndTxn refused": 1})
    result.pauses_seconds = {"rolling restart: broker killed, mode half": 4.5}
    result.most = {"resident_mib": 99, "threads": 50, "files": 60}
    return result.report()


def test_the_document_says_what_the_reports_say(report: dict[str, Any]) -> None:
    """Runs are side by side, faults are counted by kind, and a violation leaves no bound."""
    other = {"killed at relay.kafka.producer": 2, "killed at relay.fenced": 3, "lock table full, for a minute": 1}
    bad = report | {"seed": 4, "date": "2026-01-02", "faults": other, "violations": 2, "ended_early": "kafka-3\nlog"}
    text = document([report, bad])
    assert "**0 violations in 60,000 transactions.**\nWith 95 % confidence less than 3/n" in text
    for line in (
        *("| minutes | 60 | 60 |", "| fault | met |", "| relay killed | 300 |", "| faults | 301 | 6 |"),
        *("| killed at a step of relay | 5 |", "| lock table full | 1 |", "| violations | 0 | 2 |"),
        *("| seconds | half |", "| rolling restart: broker killed | 4.5 |", "**2 violations in 60,000 transactions.**"),
        "Seed 4 ended early: kafka-3\n",
    ):
        assert line in text
    assert text.count("95 %") == 1


def test_a_run_names_its_invariants_and_a_hostile_one_what_became_of_it(report: dict[str, Any]) -> None:
    result = Result(4, ENVIRONMENT, transactions=10, most={"resident_mib": 1, "threads": 1, "files": 1})
    result.attacks["malformed halves"] = 12
    result.hurts["halts of its half partitions"] = 3
    hostile = result.report()
    assert report["invariants"] == [f"I{number}" for number in (*range(1, 9), 10, 11, 12, 14, 15, 17, 18)]
    assert set(hostile["invariants"]) ^ set(report["invariants"]) == {"I16", "I18"}
    text = document([hostile])
    assert "**Seed 4**, beside a hostile channel" in text
    assert "malformed halves 12." in text
    assert "halts of its half partitions 3." in text


def test_a_report_that_is_kept_is_in_the_document(report: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report | {"command": "python -m tests.torture --seed 3 --report /a/b.json"}))
    main(tmp_path / "results", tmp_path / "torture.md", file)
    first = (tmp_path / "torture.md").read_text()
    main(tmp_path / "results", tmp_path / "torture.md")
    assert (tmp_path / "torture.md").read_text() == first
    assert "60,000" in first
    assert "`python -m tests.torture --seed 3`" in first
    assert keep(file, tmp_path / "results").name == "2026-01-01-seed-3.json"


def test_an_outage_is_in_the_document_with_what_was_wrong(report: dict[str, Any], tmp_path: Path) -> None:
    result = OutageResult(300.0, 100_000, 7, [1.0], [2.0], 10.0, 5, ["one is missing"], ENVIRONMENT)
    file = tmp_path / "outage.json"
    file.write_text(json.dumps(asdict(result)))
    assert keep(file, tmp_path / "results").name == "2026-01-01-outage.json"
    text = document([json.loads(file.read_text()), report])
    assert "| halves that waited for it | 100,000 |" in text
    assert "| wrong | one is missing |" in text
    assert "| violations | 1 |" in text


def test_the_document_is_made_from_the_reports_that_are_kept(tmp_path: Path) -> None:
    written = Path("docs/torture.md").read_text()
    main(FOLDER, tmp_path / "torture.md")
    assert (tmp_path / "torture.md").read_text() == written


@pytest.mark.parametrize("kind", ["plain", "hostile"])
def test_the_page_on_reliability_quotes_the_newest_run(kind: str) -> None:
    kept = [json.loads(path.read_text()) for path in FOLDER.glob("*-seed-*.json")]
    of_this_kind = sorted(
        (one for one in kept if ("hostile" in one) is (kind == "hostile")), key=lambda one: str(one["date"])
    )
    for newest in of_this_kind[-1:]:
        assert verdict(newest).replace("\n", "\n> ") in (FOLDER.parents[2] / "docs/reliability.md").read_text()


PAUSES = """run 0
node 0 stopped: 48.1 s, plain records waited 2.0 s, 1186 messages, slowest 4.3 s, beyond Kafka's own time 3.3 s
node 1 stopped: 45.7 s, plain records waited 13.1 s, 1109 messages, slowest 6.5 s, beyond Kafka's own time 1.8 s
half partition 0: longest pause 2.4 s
table source shop: longest pause 3.1 s
"""
REPEATED = """| run | test | outcome | seconds | measured |
|---|---|---|---|---|
| 1 | test_x::test_a | passed | 50 | healthy topic, seconds: 3.5 |
| 1 | test_x::test_b | passed | 60 | healthy topic, messages: 4; short topic, seconds: 2.5 |
| 2 | test_x::test_a | failed | 61 |  |
| 2 | test_x::test_b | passed | 61 | healthy topic, messages: 6; short topic, seconds: 0.5 |
| 1 | test_y::test_c | passed | 7 |  |
"""


def test_what_was_repeated_stands_with_its_worst_figures() -> None:
    text = document([], restarts_of(PAUSES + PAUSES.replace("3.3 s", "9.9 s")), repeated_of(REPEATED))
    assert "RUNS=2`" in text
    assert "| slowest message, beyond Kafka's own time | 3.3 | 6.6 | 9.9 |" in text
    assert "| slowest message | 6.5 | 6.5 | 6.5 |" in text
    assert "| Kafka's own time, longest of the steps | 13.1 | 13.1 | 13.1 |" in text
    assert "| longest pause of an owner | 3.1 | 3.1 | 3.1 |" in text
    assert "| test_x | 3 of 4 | healthy topic, messages | 4 | 5 | 6 |" in text
    assert "| test_x | 3 of 4 | healthy topic, seconds | 3.5 | 3.5 | 3.5 |" in text
    assert "| test_y | 1 of 1 | duration, seconds | 7 | 7 | 7 |" in text
