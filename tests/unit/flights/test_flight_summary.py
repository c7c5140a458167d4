"""The demo's result is clean only if all is accounted for, and its tables have the figures."""

import io
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from examples.flights.kafka_outage import Span
from examples.flights.kills import AFTER_COMMIT, AFTER_HALF, BEFORE_COMMIT, Kill
from examples.flights.modes import Mode
from examples.flights.printing import show
from examples.flights.reconcile import Reconciliation
from examples.flights.side_by_side import ModeFigures, Rates
from examples.flights.summary import Summary

HALF = ModeFigures(100, 10, 1, {"PublishFailed": 42}, 300, 300, 0, 0, Rates(20.0, 0.0, 19.0, 15.2))
TABLE = ModeFigures(120, 12, 1, {}, 360, 0, 360, 0, Rates(20.0, 20.0, 20.0, 0.1))
KILLS = [Kill(Mode.HALF, AFTER_HALF, "a"), Kill(Mode.TABLE, BEFORE_COMMIT, "b"), Kill(Mode.TABLE, AFTER_COMMIT, "c")]


def _summary() -> Summary:
    modes, found = {Mode.HALF: HALF, Mode.TABLE: TABLE}, Reconciliation(660)
    outage, decided = Span(1_000.0, 1_010.0, 1_014.2), Counter(rollback=2)
    return Summary(660, modes, outage, decided, kills=KILLS, survived={"c"}, visible=found, landed=found)


def _with(mode: Mode, **changes: object) -> Summary:
    summary = _summary()
    return replace(summary, modes={**summary.modes, mode: replace(summary.modes[mode], **changes)})  # type: ignore[arg-type]


def _printed(summary: Summary) -> str:
    text = io.StringIO()
    show(summary, Console(file=text, width=100))
    return text.getvalue()


def _line(text: str, start: str) -> list[str]:
    found = next(line for line in text.splitlines() if line.strip("│ ").startswith(start))
    return [cell.strip() for cell in found.strip("│").split("│")][1:]


def test_summary_of_a_good_run_is_clean() -> None:
    assert _summary().clean
    assert (_summary().committed, _summary().rolled_back) == (220, 22)


@pytest.mark.parametrize("place", ["visible", "landed"])
@pytest.mark.parametrize("wrong", ["lost", "doubled", "phantom", "out_of_order"])
def test_summary_with_one_wrong_message_is_not_clean(place: str, wrong: str) -> None:
    found = Reconciliation(660, **{wrong: ["half/a/0"]})
    assert not replace(_summary(), **{place: found}).clean  # type: ignore[arg-type]


@pytest.mark.parametrize("survived", [set[str](), {"a", "c"}, {"b", "c"}])
def test_kill_with_the_wrong_outcome_is_not_clean(survived: set[str]) -> None:
    summary = replace(_summary(), survived=survived)
    assert len(summary.wrong_outcomes()) == 1
    assert not summary.clean


@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        (Mode.HALF, {"halves": 299, "rows": 1}),
        (Mode.TABLE, {"halves": 1, "rows": 359}),
        (Mode.TABLE, {"rows": 359}),
        (Mode.HALF, {"halves": 301}),
    ],
)
def test_messages_in_another_way_are_not_clean(mode: Mode, changes: dict[str, int]) -> None:
    summary = _with(mode, **changes)
    assert summary.wrong_ways() == [mode]
    assert not summary.clean
    assert f"{mode} mode: committed messages" in _printed(summary)


@pytest.mark.parametrize(("mode", "stalled"), [(Mode.HALF, []), (Mode.TABLE, [Mode.TABLE])])
def test_only_half_mode_may_stand_still(mode: Mode, stalled: list[Mode]) -> None:
    summary = _with(mode, rates=Rates(20.0, 0.0, 20.0, 15.0))
    assert summary.stalled() == stalled
    assert summary.clean is not bool(stalled)


def test_tables_have_the_figures_of_each_mode() -> None:
    text = _printed(_summary())
    assert _line(text, "… per second, while Kafka was stopped") == ["0.0", "20.0"]
    assert _line(text, "longest pause") == ["15.2", "0.1"]
    assert _line(text, "refused with PublishFailed") == ["42", "0"]
    assert _line(text, "… visible, inserted as rows") == ["0", "360"]
    assert _line(text, "real topics, read_committed") == ["660", "0", "0", "0", "0"]
    assert _line(text, BEFORE_COMMIT) == ["1", "1", "0"]
    assert "stopped for 10.0 s, and answered again 14.2 s after" in text
