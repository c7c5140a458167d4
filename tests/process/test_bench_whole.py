"""A whole run of the benchmarks: its plan, its one file of results, the report of it, and what became slower since."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.figures import Figure, Target
from benchmarks.report import main as make_report
from benchmarks.report import overview
from benchmarks.results_file import LATEST, write_json
from benchmarks.whole.check import main as check
from benchmarks.whole.comparison import regressions
from benchmarks.whole.merge import Outcome, merge
from benchmarks.whole.plan import DEMANDED, NOT_AT_ALL, RUN_ALONE, Mode, Step, steps
from tests.support.reports import PLACE

DEMANDED_FIELDS = {"name", "ours", "unit", "baseline", "baseline_value", "ratio", "target", "met", "runs", "spread"}


def figure(name: str, ours: float, beside: float | None, unit: str = "messages/s") -> Figure:
    values = [] if beside is None else [beside] * 3
    reason = None if values else "no such peer"
    return Figure(name, f"how fast {name}", unit, "a peer", [ours] * 3, values, Target("ratio", "at least", 1), reason)


def results(*figures: Figure, **versions: str) -> dict[str, Any]:
    records = [each.record() for each in figures]
    return {**PLACE, "command": "c", "versions": versions, "settings": {"rounds": 3}, "figures": records, "series": {}}


def outcome(name: str, *figures: Figure, failure: str | None = None) -> Outcome:
    step = Step(name, "peers", "benchmarks.peers", ("--part", name), 60)
    return Outcome(step, 12.3, results(*figures, Python="3.11") if figures else None, failure)


def latest(*figures: Figure) -> dict[str, Any]:
    return merge(Mode.QUICK, "make bench QUICK=1", [outcome("drain", *figures)])


@pytest.mark.parametrize(
    "step", [pytest.param(step, id=f"{mode}-{step.name}") for mode in Mode for step in steps(mode)]
)
def test_each_step_is_told_what_its_module_takes(step: Step) -> None:
    """A size below a module's least, or a part that it does not know, would cost the step all of its figures."""
    app = typer.Typer(add_completion=False)
    app.command()(importlib.import_module(f"{step.module}.__main__").main)
    with typer.main.get_command(app).make_context(step.module, list(step.arguments)) as context:
        assert context.params["output"] is not None


@pytest.mark.parametrize("section", sorted({step.section for step in steps(Mode.FULL)}))
def test_every_part_is_measured_by_a_full_run_or_known_to_be_run_alone(section: str) -> None:
    parts = set(importlib.import_module(f"benchmarks.{section}.__main__").Part)
    full = {part for step in steps(Mode.FULL) if step.section == section for part in step.parts}
    assert full | set(RUN_ALONE.get(section, ())) == parts
    assert not full & set(RUN_ALONE.get(section, ()))


@pytest.mark.parametrize("mode", [Mode.ORDINARY, Mode.FULL])
def test_every_demanded_figure_has_a_step(mode: Mode) -> None:
    assert set(DEMANDED.values()) <= {step.name for step in steps(mode)}


def test_a_demanded_figure_is_told_of_even_if_nobody_measured_it() -> None:
    merged = merge(Mode.QUICK, "make bench", [outcome("peers-drain", figure("relay_drain_vs_polling_relay", 2, 1))])
    found = {each["name"]: each for each in merged["figures"]}
    assert set(DEMANDED) <= set(found)
    assert all(set(each) >= DEMANDED_FIELDS for each in merged["figures"])
    assert found["relay_drain_vs_polling_relay"]["ratio"] == 2
    assert found["relay_drain_vs_debezium"]["not_measured"] == "the step peers-drain did not measure it"
    assert found["land_vs_delta"]["not_measured"] == "a run of this size leaves it out"


def test_there_is_no_ratio_to_nothing() -> None:
    record = Figure("lost", "lost", "messages", "a peer", [0, 0, 0], [0, 0, 5], Target("ours", "at most", 0)).record()
    assert (record["ratio"], record["difference"], record["met"]) == (None, 0, True)


def test_the_document_is_made_of_the_whole_run(tmp_path: Path) -> None:
    merged = merge(
        Mode.QUICK,
        "make bench QUICK=1",
        [
            outcome("peers-drain", figure("relay_drain_vs_polling_relay", 2, 1), figure("odd", 2, None)),
            outcome("peers-cost", failure="ended with 1: no room"),
        ],
    )
    write_json(tmp_path / "results" / LATEST, merged)
    make_report(tmp_path / "results", tmp_path / "performance.md")
    text = (tmp_path / "performance.md").read_text()
    assert "`make bench QUICK=1`, commit `abc`, 2026-01-01, S, P, 2 cores, 3.5 GiB" in text
    assert "1 are met and 0 missed." in text
    assert "- peers-cost: ended with 1: no room" in text
    assert re.search(rf"^- Not in this run, {NOT_AT_ALL}: .*peers check-back, .*relay growth", text, re.MULTILINE)
    assert "| how fast odd | 2 messages/s | a peer: not measured, no such peer |" in text
    assert "- Not measured: land_vs_delta, a run of this size leaves it out\n" in text
    assert (tmp_path / "performance" / "peers.svg").read_text().count("<svg") == 1
    assert "peers-cost" in overview(merged)


@pytest.mark.parametrize(
    ("unit", "before", "after", "worse"),
    [
        ("messages/s", 1.0, 0.81, False),
        ("messages/s", 1.0, 0.79, True),
        ("rows/s per core", 1.0, 2.0, False),
        ("of no messaging", 0.5, 0.39, True),
        ("ms", 1.0, 1.24, False),
        ("ms", 1.0, 1.26, True),
        ("ms", 1.0, 0.1, False),
        ("bytes", 2.0, 0.0, False),
    ],
)
def test_a_ratio_may_be_a_fifth_worse(unit: str, before: float, after: float, worse: bool) -> None:  # noqa: FBT001
    kept, new = latest(figure("x", before, 1, unit)), latest(figure("x", after, 1, unit))
    assert [said.partition(" ")[0] for said in regressions(kept, new)] == (["x"] if worse else [])


def test_what_is_not_measured_any_more_counts_as_worse() -> None:
    kept = latest(figure("x", 1, 1), figure("y", 1, 1))
    [x, y] = regressions(kept, latest(figure("x", 1, None)))
    assert x == "x was 1 times a peer, and is not measured any more: no such peer"
    assert y == "y was 1 times a peer, and is not measured any more: the run does not tell of it"
    assert regressions(latest(figure("x", 1, None)), latest(figure("x", 1, 1))) == []


def counted(ours: float, beside: float, target: Target | None = None) -> dict[str, Any]:
    return latest(Figure("x", "x", "messages", "a peer", [ours] * 3, [beside] * 3, target))


NONE = Target("ours", "at most", 0)


@pytest.mark.parametrize(
    ("kept", "new", "said"),
    [
        (counted(0, 5), counted(1, 5), "x was 0 times a peer, and is 0.2 times: worse by 100%"),
        (counted(0, 5), counted(0, 7), None),
        (counted(0, 5), counted(0, 0), None),
        (counted(0, 0, NONE), counted(0, 0, NONE), None),
        (counted(0, 0, NONE), counted(1, 0, NONE), "x met its target, ours at most 0, and misses it with 1"),
        (counted(0, 5, NONE), counted(1, 0, NONE), "x met its target, ours at most 0, and misses it with 1"),
        (counted(1, 0, NONE), counted(2, 0, NONE), None),
        (counted(0, 0, NONE), latest(), "x was 0 messages, and is not measured any more: the run does not tell of it"),
    ],
)
def test_messages_newly_lost_count_as_worse(kept: dict[str, Any], new: dict[str, Any], said: str | None) -> None:
    assert regressions(kept, new) == ([] if said is None else [said])


@pytest.mark.parametrize(("after", "worse"), [(1.2, False), (1.21, True)])
def test_a_difference_may_be_a_fifth_beyond_the_target_that_it_met(after: float, worse: bool) -> None:  # noqa: FBT001
    target = Target("difference", "at most", 1)
    kept, new = counted(101, 100, target), counted(100 + after, 100, target)
    assert len(regressions(kept, new)) == worse


def test_the_check_ends_with_1_and_names_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, worse = tmp_path / "kept.json", tmp_path / "worse.json"
    write_json(kept, latest(figure("speed", 1, 1)))
    write_json(worse, latest(figure("speed", 0.5, 1)))
    check(kept, kept)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        check(kept, worse)
    # A text ends a process with 1.
    assert ended.value.code == "1 figures became worse by more than 20%, or miss a target that they met"
    assert "speed was 1 times a peer, and is 0.5 times: worse by 50%" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="missing"):
        check(tmp_path / "none.json", kept)
