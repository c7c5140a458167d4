"""Benchmarks say what was measured: percentiles, spreads, figures with their targets, and the report made of them."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.application import Application, Tell
from benchmarks.checker.purge import in_changing_order
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.relay.stages import ROW_STAGES, STAGES, measure_stages
from benchmarks.report import section
from benchmarks.results_file import read_results, write_results
from benchmarks.run import Run
from benchmarks.spread import Spread, percentile
from checker.upkeep import walk
from tests.support.reports import PLACE

ENVIRONMENT = {**PLACE, "command": "python -m benchmarks.library", "versions": {"Python": "3.11"}}
SERIES = {
    "memory": {"transactions": [0, 50], "resident_mib": [80.5, 81.0], "seconds": 12.0},
    "kept": {"before": {"a": 1, "b": 2}, "after": {"a": 1, "b": 5}},
    "traced": {"transactions": 2000, "bytes_left": 640},
}


def figure(ours: list[float], beside: list[float], target: Target | None = None, name: str = "speed") -> Figure:
    return Figure(name, "what is fast", "ms", "what is slow", ours, beside, target)


def test_percentiles_lie_between_samples_by_proportion() -> None:
    samples = [float(number) for number in range(101)]
    assert [percentile(samples, percent) for percent in (1, 50, 99)] == [1, 50, 99]
    assert percentile([10.0, 20.0], 50) == 15


def test_variants_run_in_turn_with_a_rest_after_each() -> None:
    order: list[str] = []

    def variant(name: str) -> str:
        order.append(name)
        return name.upper()

    variants = {name: partial(variant, name) for name in ("a", "b")}
    assert interleave(variants, 3, lambda: order.append("-")) == {"a": ["A"] * 3, "b": ["B"] * 3}
    assert "".join(order) == "a-b-a-b-a-b-"


def test_each_begins_a_round_in_turn() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return len(order)

    runs = {name: partial(run, name) for name in "abc"}
    found = in_changing_order(runs, 3, lambda: order.append("-"))
    assert found == {"a": [2, 12, 16], "b": [4, 8, 18], "c": [6, 10, 14]}
    assert "".join(order) == "-a-b-c-b-c-a-c-a-b"


class Unconnected(Application):
    def __init__(self) -> None:
        """Connect to nothing."""


def test_an_application_runs_for_a_time_with_numbers_of_their_own_for_its_threads() -> None:
    done: list[tuple[int, int]] = []

    class Counting(Unconnected):
        def transaction(self, tell: Tell, number: int, *_: Any, **__: Any) -> None:  # noqa: ARG002
            time.sleep(0.001)
            done.append((threading.get_ident(), number))

    rate = Counting().rate_for(lambda *_: None, 3, 0.1)
    numbers = sorted(number for _, number in done)
    assert len(set(numbers)) == len(numbers) == len(rate.seconds) > 3
    assert {len({number % 3 for thread, number in done if thread == one}) for one, _ in done} == {1}
    assert rate.per_second < len(numbers) / 0.1


def test_the_stages_of_the_relay_are_parts_of_one_whole() -> None:
    figures = measure_stages(3, 20)
    assert [figure.name.rpartition("stage_")[2] for figure in figures] == [*STAGES, *ROW_STAGES]
    rounds = (*_by_round(figures[: len(STAGES)]), *_by_round(figures[len(STAGES) :]))
    assert all(sum(ours) == pytest.approx(whole[0]) for ours, whole in rounds)


def _by_round(figures: list[Figure]) -> Iterator[tuple[list[float], list[float]]]:
    """Of each round, what the stages took, and the whole that each stands beside."""
    for number in range(len(figures[0].ours)):
        yield [figure.ours[number] for figure in figures], [figure.beside[number] for figure in figures]


def test_ratio_and_difference_are_taken_within_each_round() -> None:
    noisy = figure([2, 20, 200], [1, 10, 100])
    assert noisy.measured("ratio") == Spread(2, 2, 2)
    assert noisy.measured("difference") == Spread(1, 10, 100)


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("ratio", "at least", 2), True),
        (Target("ratio", "at least", 2.1), False),
        (Target("ratio", "at most", 2), True),
        (Target("difference", "at most", 0.9), False),
        (None, None),
    ],
)
def test_a_target_is_met_by_the_median(target: Target | None, met: bool | None) -> None:  # noqa: FBT001 - a parameter
    assert figure([2, 2, 9], [1, 1, 1], target).record()["met"] is met


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "library.json"
    write_results(path, ENVIRONMENT, {"rounds": 3}, [figure([1, 2, 3.00004], [2, 2, 2])], SERIES)
    results = read_results(path)
    assert (results["command"], results["settings"]) == (ENVIRONMENT["command"], {"rounds": 3})
    assert results["series"] == SERIES
    [record] = results["figures"]
    assert (record["ours"], record["baseline_value"], record["ratio"], record["runs"]) == (2, 2, 1, 3)
    assert record["spread"]["ours"] == {"minimum": 1, "median": 2, "maximum": 3}


@pytest.mark.parametrize(
    ("beside", "why", "said"),
    [
        ([1.0, 2.0, 4.0], None, "what is slow 2 → ratio 1.5 (0.5 to 3)"),
        ([0.0, 0.0, 0.0], None, "what is slow 0\n"),
        ([], "it died", "what is slow not measured (it died)"),
    ],
)
def test_a_figure_is_told_with_what_stands_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], beside: list[float], why: str | None, said: str
) -> None:
    one = replace(figure([3.0, 3.0, 2.0], beside), not_measured=why)
    Run(tmp_path / "results.json", ENVIRONMENT, {}).measure("part", lambda: [one])
    assert said in capsys.readouterr().out


def test_the_report_says_what_the_file_says(tmp_path: Path) -> None:
    figures = [
        figure([2, 3, 4], [2, 2, 2], Target("ratio", "at most", 1.2)),
        figure([1234, 1300, 1400], [1000, 1000, 1000], name="many"),
    ]
    write_results(tmp_path / "library.json", ENVIRONMENT, {"rounds": 3}, figures, SERIES)
    text = section("library", read_results(tmp_path / "library.json"), tmp_path / "charts")
    assert "| what is fast | 3 ms | 2 (what is slow) | 1.5 (1…2) | ≤ 1.2 missed |" in text
    assert "| 1,300 ms | 1,000 (what is slow) | 1.3 (1.23…1.4) |  |" in text
    text = section("memory", read_results(tmp_path / "library.json"), tmp_path / "charts")
    assert "50 transactions went through one `Outbox` in 0 minutes" in text
    assert "became more: b: 2 → 5." in text
    for chart in ("library", "memory"):
        assert (tmp_path / "charts" / f"{chart}.svg").read_text().count("<svg") == 1


@pytest.mark.parametrize("name", ["relay", "spark", "checker"])
def test_a_services_section_says_what_its_file_says(tmp_path: Path, name: str) -> None:
    figures = [figure([0.5, 0.6, 0.9], [1, 1, 1], Target("ratio", "at least", 0.7))]
    write_results(tmp_path / f"{name}.json", ENVIRONMENT, {"rounds": 3}, figures, {})
    text = section(name, read_results(tmp_path / f"{name}.json"), tmp_path / "charts")
    assert "| what is fast | 0.6 ms | 1 (what is slow) | 0.6 (0.5…0.9) | ≥ 0.7 missed |" in text
    assert (f"commits every {walk.PAGE:,} rows" in text) is (name == "checker")
    assert (tmp_path / "charts" / f"{name}.svg").read_text().count("<svg") == 1


def test_a_figure_beside_several_others_is_one_row(tmp_path: Path) -> None:
    """A target about the difference shows that; what only the results have is no row."""
    figures = [
        figure([3, 3, 3], [1, 1, 1], Target("difference", "at most", 5)),
        replace(figure([3, 3, 3], [2, 2, 2], name="other"), baseline="a peer"),
        figure([7, 7, 7], [1, 1, 1], name="x_p95_ms"),
        figure([8, 8, 8], [1, 1, 1], name="x_alone"),
    ]
    write_results(tmp_path / "relay.json", ENVIRONMENT, {"rounds": 3}, figures, {})
    text = section("relay", read_results(tmp_path / "relay.json"), tmp_path / "charts")
    beside = "1 (what is slow)<br>2 (a peer) | difference 2 (2…2)<br>1.5 (1.5…1.5) | difference ≤ 5 **met**<br> |"
    assert f"| what is fast | 3 ms | {beside}" in text
    assert text.count("| what is fast |") == 1
