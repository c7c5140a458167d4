"""`python -m benchmarks.report`: makes `docs/performance.md` and its charts from the results' files.

The text is in the templates of the folder `sections`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.application import STATEMENTS_AFTER
from benchmarks.charts import draw_costs, draw_growth, draw_ratios
from benchmarks.peers.debezium_settings import DEFAULT_POLL_MS, POLL_MS, TUNED
from benchmarks.results_file import FOLDER, LATEST, read_results
from benchmarks.steady import RATE
from benchmarks.whole.merge import results_of_sections
from benchmarks.whole.plan import DEMANDED, MODES
from checker.upkeep import walk

SECTIONS = (MODES, "library", "memory", "relay", "checker", "spark", "peers")
"""Names of results files, in the order of the document; what was not measured yet has none."""


def section(name: str, results: Mapping[str, Any], charts: Path) -> str:
    """Return a section of the document, and draw its charts.

    Args:
        name: One of `SECTIONS`.
        results: Of the benchmark of that name; of `benchmarks.library --part memory` for `memory`.
        charts: Folder for the charts, beside the document.
    """
    if name == "memory":
        draw_growth(results["series"]["memory"], charts / "memory.svg")
    else:
        draw_ratios(results["figures"], charts / f"{name}.svg")
    if costs := costs_of(results["figures"]):
        draw_costs(costs, charts / "costs.svg")
    is_alone = "command" in results
    shown = [figure for figure in results["figures"] if is_alone or not _LATENCY.fullmatch(figure["name"])]
    return _rendered(name, name=name, results=results, shown=shown, charts=charts.name, is_alone=is_alone, costs=costs)


def overview(whole: Mapping[str, Any]) -> str:
    """Return what a whole run means for users, where it ran, and what it did not measure."""
    demanded = [figure for figure in whole["figures"] if figure["name"] in DEMANDED]
    known = {figure["name"]: figure for figure in whole["figures"] if figure["ours"] is not None}
    latencies = latencies_of(whole["figures"])
    return _rendered("overview", whole=whole, demanded=demanded, known=known, latencies=latencies)


def alone_section(alone: Mapping[str, Mapping[str, Any]], shown: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what has a run of its own, because it takes very long, or was measured again since; empty if nothing has.

    Args:
        alone: Results of benchmarks that were run alone, by the names of their files; of two the newer one counts.
        shown: Those that have a section; what is measured there is shown again only if it is newer.
    """
    known = {figure["name"]: results["date"] for results in shown.values() for figure in results["figures"]}
    parts = []
    for name, results in sorted(alone.items(), key=lambda named: named[1]["date"], reverse=True):
        figures = [figure for figure in results["figures"] if known.get(figure["name"], "") < results["date"]]
        if figures and results is not shown.get(name):
            parts.append((results, figures))
        known |= {figure["name"]: results["date"] for figure in figures}
    return _rendered("alone", parts=parts) if parts else ""


_COST = re.compile(r"table_drain_cpu_(relay|postgres|broker)_vs_(\w+?)(_1_each)?")
_LINES = {True: "1 row in a transaction", False: "10 rows in a transaction"}


def costs_of(figures: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the CPU for a row that drains, by kind of process, of table mode and each peer that was measured."""
    found: dict[str, dict[str, float]] = {}
    for figure in figures:
        if (match := _COST.fullmatch(figure["name"])) and figure["ours"] is not None:
            line = _LINES[match[3] is not None]
            found.setdefault(f"table mode, {line}", {}).setdefault(match[1], figure["ours"])
            if figure["baseline_value"] is not None:
                found.setdefault(f"{figure['baseline']}, {line}", {})[match[1]] = figure["baseline_value"]
    return found


_LATENCY = re.compile(rf"(at_least_once_|table_|)commit_to_visible_p(\d+)_ms_{RATE}(_vs_\w+)?")
_WAYS = {
    "table_": "table mode",
    "": "half mode",
    "at_least_once_": "half mode, at least once",
}
"""Ways of a message, by the beginning of the figures' names."""


def latencies_of(figures: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, str]]:
    """Percentiles from COMMIT to the reader, ours first, then of each peer that was measured."""
    ours: dict[str, dict[int, str]] = {name: {} for name in _WAYS.values()}
    peers: dict[str, dict[int, str]] = {}
    for figure in figures:
        if match := _LATENCY.fullmatch(figure["name"]):
            percent, beside = int(match[2]), figure["baseline"]
            if figure["ours"] is not None:
                ours[_WAYS[match[1]]][percent] = _number(figure["ours"])
            if figure["baseline_value"] is not None and beside not in ours:
                peers.setdefault(beside, {})[percent] = _number(figure["baseline_value"])
    return {name: found for name, found in {**ours, **peers}.items() if found}


# --- templates


def _rendered(template: str, **given: object) -> str:
    text = _TEMPLATES.get_template(f"{template}.md.j2").render(**given)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _by_reason(parts: Iterable[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Return what a run does not measure, by the reason."""
    reasons: dict[str, list[str]] = {}
    for each in parts:
        reasons.setdefault(each["why"], []).append(f"{each['section']} {each['part']}")
    return list(reasons.items())


_ONLY_IN_RESULTS = re.compile(
    r"_p95_|_alone$|_first_seconds$|_start_to_first_|_made_before_|eager_(p99|.*100kb)|cost_(dead_)?rows"
    r"|secured_publish_(certificate|token)|relay_memory_mb_|drain_cpu_(relay|postgres|broker)_|_vs_1$"
)
"""Figures that the document leaves out: what another one or a chart shows, and an application without its relay."""


def _rows(figures: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the rows of a table: a figure of ours once, with all that it is beside."""
    services: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for figure in figures:
        if not _ONLY_IN_RESULTS.search(figure["name"]):
            services.setdefault((figure["title"], _ours(figure)), []).append(figure)
    for (title, ours), service in services.items():
        yield title, ours, _lines(map(_baseline, service)), _lines(map(_ratio, service)), _lines(map(_target, service))


def _lines(cells: Iterable[str]) -> str:
    """Return the lines of a cell; one if all are the same."""
    lines = list(cells)
    return lines[0] if len(set(lines)) == 1 else "<br>".join(lines)


def _target(figure: Mapping[str, Any]) -> str:
    target = figure["target"]
    if target is None:
        return ""
    met = {None: "", True: " **met**", False: " missed"}[figure["met"]]
    measure = "" if target["measure"] == "ratio" else f"{target['measure']} "
    return f"{measure}{_SIGNS[target['sense']]} {target['value']:,g}{met}"


_SIGNS = {"at least": "≥", "at most": "≤"}


def _ratio(figure: Mapping[str, Any]) -> str:
    """Return the ratio; the difference where the target is about that."""
    is_difference = (figure["target"] or {}).get("measure") == "difference"
    return f"difference {_spread(figure, 'difference')}" if is_difference else _spread(figure, "ratio")


def _ours(figure: Mapping[str, Any]) -> str:
    if figure["ours"] is None:
        return f"not measured: {figure['not_measured']}"
    return f"{_number(figure['ours'])} {figure['unit']}"


def _baseline(figure: Mapping[str, Any]) -> str:
    if figure["ours"] is None or not figure["baseline"]:
        return ""
    if figure["baseline_value"] is None:
        return f"{figure['baseline']}: not measured, {figure['not_measured']}"
    return f"{_number(figure['baseline_value'])} ({figure['baseline']})"


def _spread(figure: Mapping[str, Any], measure: str) -> str:
    spread = figure["spread"][measure]
    if spread is None:
        return ""
    if figure["runs"] == 1:
        return _number(spread["median"])
    return f"{_number(spread['median'])} ({_number(spread['minimum'])}…{_number(spread['maximum'])})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - beyond, digits are noise


def _grown(kept: Mapping[str, Mapping[str, int]]) -> str:
    """Return which kinds of objects became more."""
    before, after = kept["before"], kept["after"]
    grown = [f"{name}: {before.get(name, 0)} → {count}" for name, count in after.items() if count > before.get(name, 0)]
    return ", ".join(grown) or "none"


_TEMPLATES = Environment(  # noqa: S701 - Markdown
    loader=FileSystemLoader(Path(__file__).with_name("sections")),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "by_reason": _by_reason,
    "rows": _rows,
    "ours": _ours,
    "baseline": _baseline,
    "grown": _grown,
}
_TEMPLATES.globals |= {
    "rate": RATE,
    "statements_after": STATEMENTS_AFTER,
    "purge_batch": f"{walk.PAGE:,}",
    "purge_pace": f"{walk.PACE:g}",
    "tuned_poll_ms": TUNED.connector[POLL_MS],
    "default_poll_ms": DEFAULT_POLL_MS,
}


Results = Annotated[Path, typer.Option(help="Folder with the results' files.")]
Document = Annotated[Path, typer.Option(help="The document; its charts lie beside it.")]


def main(results: Results = FOLDER, document: Document = Path("docs/performance.md")) -> None:
    """Make the document from the results."""
    charts = document.with_suffix("")
    alone = {file.stem: read_results(file) for file in sorted(results.glob("*.json")) if file.name != LATEST}
    whole = read_results(file) if (file := results / LATEST).exists() else None
    together = results_of_sections(whole) if whole else {}
    shown = {name: found for name in SECTIONS if (found := together.get(name) or alone.get(name))}
    parts = [_rendered("head"), overview(whole) if whole else ""]
    parts += [section(name, found, charts) for name, found in shown.items()]
    parts.append(alone_section(alone, shown))
    document.write_text("\n".join(filter(None, parts)))


if __name__ == "__main__":
    typer.run(main)
