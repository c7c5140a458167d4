"""One file of results from those of a run's steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import Figure
from benchmarks.whole.plan import DEMANDED, MODES, Mode, Step, is_of_modes, left_out

_PLACE = ("machine", "date", "commit")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step.

    Args:
        results: The file that it wrote; None if it wrote none.
        failure: Why it did not end as it should, None if it did.
    """

    step: Step
    seconds: float
    results: Mapping[str, Any] | None
    failure: str | None = None


def merge(mode: Mode, command: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the results of a whole run: one record for each figure, and those that must be told of in any case.

    Returns:
        What `latest.json` holds. The machine, date and commit are those of the first step that wrote results.
    """
    written = [outcome.results for outcome in outcomes if outcome.results is not None]
    figures = _figures(outcomes)
    missing = [_missing(name, step, outcomes) for name, step in DEMANDED.items() if name not in figures]
    return {
        **({name: written[0][name] for name in _PLACE} if written else dict.fromkeys(_PLACE)),
        "mode": mode.value,
        "command": command,
        "versions": {name: version for results in written for name, version in results["versions"].items()},
        "steps": [_step(outcome) for outcome in outcomes],
        "left_out": [asdict(each) for each in left_out(mode)],
        "figures": [*figures.values(), *missing],
    }


def results_of_sections(latest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of each section of the report, in the form that a benchmark alone writes them.

    Figures of table mode have a section of their own, whichever step measured them.

    Args:
        latest: A whole run's; one of which no step wrote results has none.
    """
    if latest["machine"] is None:
        return {}
    sections = dict.fromkeys(step["section"] for step in latest["steps"])
    found = {section: _results_of(latest, section) for section in sections}
    modes = [figure for figure in latest["figures"] if is_of_modes(figure["name"])]
    is_measured = any(figure["ours"] is not None for figure in modes)
    return found | ({MODES: _section_of(latest, modes)} if is_measured else {})


def _results_of(latest: Mapping[str, Any], section: str) -> dict[str, Any]:
    steps = {step["name"] for step in latest["steps"] if step["section"] == section}
    figures = [figure for figure in latest["figures"] if figure["step"] in steps and not is_of_modes(figure["name"])]
    return _section_of(latest, figures)


def _section_of(latest: Mapping[str, Any], figures: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {"date": latest["date"], "figures": figures, "series": {}}


def _figures(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        for figure in (outcome.results or {}).get("figures", []):
            # Of two steps that measure the same, the first counts.
            found.setdefault(figure["name"], {**figure, "step": outcome.step.name})
    return found


def _missing(name: str, step: str, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    outcome = next((each for each in outcomes if each.step.name == step), None)
    if outcome is None:
        reason = "a run of this size leaves it out"
    else:
        reason = outcome.failure or f"the step {step} did not measure it"
    return {**Figure(name, name, "", "", [], [], not_measured=reason).record(), "step": step}


def _step(outcome: Outcome) -> dict[str, Any]:
    results = outcome.results or {}
    return {
        "name": outcome.step.name,
        "section": outcome.step.section,
        "command": " ".join(["python", *outcome.step.command]),
        "settings": results.get("settings", {}),
        "seconds": round(outcome.seconds),
        "failure": outcome.failure,
    }
