"""`python -m benchmarks.report`: makes `docs/performance.md` and its charts from the results' files.

The text is in the templates of the folder `sections`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.application import STATEMENTS_AFTER
from benchmarks.charts import draw_growth, draw_percentiles, draw_ratios
from benchmarks.peers.debezium_settings import DEFAULT_POLL_MS, POLL_MS, TUNED
from benchmarks.results_file import FOLDER, LATEST, read_results
from benchmarks.steady import RATE
from benchmarks.whole.merge import results_of_sections
from benchmarks.whole.plan import DEMANDED, MODES
from checker.upkeep import purge

SECTIONS = ("library", MODES, "memory", "relay", "checker", "spark", "peers")
"""Names of results files, in the order of the document; what was not measured yet has none."""


def section(name: str, results: Mapping[str, Any], charts: Path) -> str:
    """Return a section of the document, and draw its charts.

    Args:
        name: One of `SECTIONS`.
        results: Of the benchmark of that name; of `benchmarks.library --part memory` for `memory`.
        charts: Folder for the charts, beside the document.
    """
    latencies = latencies_of(results["figures"]) if name == "peers" else {}
    if name == "memory":
        draw_growth(results["series"]["memory"], charts / "memory.svg")
    else:
        draw_ratios(results["figures"], charts / f"{name}.svg")
    if latencies:
        draw_percentiles(latencies, f"ms from COMMIT to the reader, at {RATE} transactions/s", charts / "latency.svg")
    return _rendered(name, name=name, results=results, charts=charts.name, latencies=latencies)


def overview(whole: Mapping[str, Any]) -> str:
    """Return where we stand: the figures of a whole run that everybody asks for."""
    demanded = [figure for figure in whole["figures"] if figure["name"] in DEMANDED]
    return _rendered("overview", whole=whole, demanded=demanded)


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


def latencies_of(figures: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Percentiles from COMMIT to the reader, ours first, then of each peer that was measured.

    Args:
        figures: Of `benchmarks.peers`.
    """
    found: dict[str, dict[int, float]] = {}
    for figure in figures:
        if match := re.match(rf"commit_to_visible_p(\d+)_ms_{RATE}(?!\d)", figure["name"]):
            for name, field in (("this project", "ours"), (figure["baseline"], "baseline_value")):
                if figure[field] is not None:
                    found.setdefault(name, {})[int(match[1])] = figure[field]
    return found


# --- templates


def _rendered(template: str, **given: object) -> str:
    text = _TEMPLATES.get_template(f"{template}.md.j2").render(**given)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _by_reason(parts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return what a run does not measure, by the reason."""
    reasons: dict[str, list[str]] = {}
    for each in parts:
        reasons.setdefault(each["why"], []).append(each["part"])
    return reasons


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(_setting(name, value) for name, value in settings.items())


def _setting(name: str, value: Any) -> str:
    return f"{name} {', '.join(value) or 'none'}" if isinstance(value, list) else f"{name} {value:,g}"


def _target(target: Mapping[str, Any] | None) -> str:
    return "" if target is None else f"{target['measure']} {target['sense']} {target['value']:g}"


def _ours(figure: Mapping[str, Any]) -> str:
    if figure["ours"] is None:
        return f"not measured: {figure['not_measured']}"
    return f"{_number(figure['ours'])} {figure['unit']}"


def _baseline(figure: Mapping[str, Any]) -> str:
    if figure["ours"] is None:
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
    return f"{_number(spread['median'])} ({_number(spread['minimum'])} to {_number(spread['maximum'])})"


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
    "settings": _settings,
    "target": _target,
    "ours": _ours,
    "baseline": _baseline,
    "spread": _spread,
    "grown": _grown,
}
_TEMPLATES.globals |= {
    "rate": RATE,
    "statements_after": STATEMENTS_AFTER,
    "purge_batch": f"{purge.BATCH:,}",
    "purge_pace": f"{purge.PACE:g}",
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
