"""A whole run of the benchmarks: its plan, its one file of results, the report of it, and what became slower since."""

import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.figures import Figure, Target
from benchmarks.report import main as make_report
from benchmarks.report import overview
from benchmarks.results_file import LATEST, read_results, write_json
from benchmarks.whole import __main__ as whole
from benchmarks.whole.check import main as check
from benchmarks.whole.comparison import regressions
from benchmarks.whole.merge import Outcome, merge
from benchmarks.whole.plan import (
    ALONE,
    BUDGET_SECONDS,
    DEMANDED,
    NOT_ALL,
    NOT_AT_ALL,
    RUN_ALONE,
    Mode,
    Step,
    left_out,
    steps,
)
from benchmarks.whole.processes import run_step
from tests.support.harness import wait_until
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


@pytest.mark.parametrize("mode", Mode)
def test_each_size_has_steps_with_names_of_their_own(mode: Mode) -> None:
    names = [step.name for step in steps(mode)]
    assert len(names) == len(set(names))
    assert all(step.longest_seconds <= BUDGET_SECONDS[mode] for step in steps(mode))


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


def test_a_run_tells_what_it_does_not_measure() -> None:
    ordinary = {(each.section, each.part): each.why for each in left_out(Mode.ORDINARY)}
    assert ordinary["relay", "growth"] == NOT_AT_ALL
    assert ordinary["peers", "latency"] == NOT_ALL
    assert ordinary["library", "memory"] == ALONE
    assert ("relay", "drain") not in ordinary
    assert {each.why for each in left_out(Mode.FULL)} == {ALONE}
    assert ("peers", "death") in {(each.section, each.part) for each in left_out(Mode.QUICK)}


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


def test_a_step_that_failed_says_why_in_each_figure_that_it_owes() -> None:
    merged = merge(Mode.QUICK, "make bench", [outcome("spark", failure="not done after 60 s")])
    owed = [each for each in merged["figures"] if each["step"] == "spark"]
    assert [each["not_measured"] for each in owed] == ["not done after 60 s"] * 2
    assert merged["machine"] is None


def test_of_two_steps_with_the_same_figure_the_first_counts() -> None:
    twice = [outcome("one", figure("x", 1, 1)), outcome("two", figure("x", 5, 1))]
    [found] = [each for each in merge(Mode.FULL, "c", twice)["figures"] if each["name"] == "x"]
    assert (found["ratio"], found["step"]) == (1, "one")


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
def test_messages_that_begin_to_be_lost_count_as_worse(
    kept: dict[str, Any], new: dict[str, Any], said: str | None
) -> None:
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


@pytest.mark.parametrize("interrupted", [False, True])
def test_only_a_run_that_ended_takes_the_place_of_the_kept_one(
    interrupted: bool,  # noqa: FBT001 - a parameter
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, running = tmp_path / "kept.json", tmp_path / "work" / "running.json"
    kept.write_text("kept")
    steps_left = list(steps(Mode.QUICK))

    def run(step: Step, _left: float) -> Outcome:
        steps_left.remove(step)
        if interrupted and not steps_left:
            raise KeyboardInterrupt
        assert kept.read_text() == "kept"
        return Outcome(step, 1, None, "no")

    monkeypatch.setattr(whole, "WORK", tmp_path / "work")
    monkeypatch.setattr(whole, "RUNNING", running)
    monkeypatch.setattr(whole, "_run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    if interrupted:
        with pytest.raises(SystemExit, match=str(running)):
            whole.main(Mode.QUICK, None, kept)
        assert (kept.read_text(), len(read_results(running)["steps"])) == ("kept", len(steps(Mode.QUICK)) - 1)
    else:
        whole.main(Mode.QUICK, None, kept)
        assert (len(read_results(kept)["steps"]), running.exists()) == (len(steps(Mode.QUICK)), False)


HEAR_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A shell starts what runs in the background deaf to it."""


def test_a_step_that_fails_or_lasts_is_told_of(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_step(["-c", "print(1)"], log, 60) is None
    assert run_step(["-c", "raise SystemExit('no such thing')"], log, 60) == "ended with 1: no such thing"
    assert run_step(["-c", "print('│ wrong │\\n╰──╯'); exit(2)"], log, 60) == "ended with 2: wrong"
    assert run_step(["-c", f"{HEAR_SIGINT}; import time; time.sleep(600)"], log, 0.5) == "not done after 0 s"


CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
time.sleep(600)
"""
STEP = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
RUN = f"""
import pathlib, sys
from benchmarks.whole.processes import run_step
{HEAR_SIGINT}
run_step(["-c", *sys.argv[2:]], pathlib.Path(sys.argv[1]), 600)
"""


def test_what_a_step_started_ends_with_the_run(tmp_path: Path) -> None:
    """Ctrl-C of a run whose step has started a process of its own, which does not listen to it."""
    pid = tmp_path / "pid"
    command = [sys.executable, "-c", RUN, str(tmp_path / "log"), STEP, CHILD, str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(lambda: pid.exists() and pid.read_text() != "")
        process.send_signal(signal.SIGINT)
        process.wait(60)
    wait_until(lambda: not Path(f"/proc/{pid.read_text()}").exists())
