"""`python -m tests.torture.document`: makes docs/torture.md from the reports that are kept.

`--keep` keeps a report first: build/torture/report.json, the pauses of `make rolling` (build/rolling.txt), or the table
of `tests.repeat` (a .md file), of which each file of tests replaces what was kept of it. No figure is typed by hand.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from jinja2 import Environment, StrictUndefined

from tests.torture.outage import OutageResult

FOLDER = Path(__file__).parent / "results"

ROLLING, REPEATED = "rolling.json", "repeated.json"
_TEMPLATE = Path(__file__).with_name("document.md.j2")

Repeated = Mapping[str, Any]
"""What was repeated: how many runs, and the figures of each, by name."""

_RULE = "With 95 % confidence less than 3/n (rule of three, for independent trials)"


def document(
    reports: Iterable[Mapping[str, Any]],
    restarts: Repeated | None = None,
    repeated: Mapping[str, Repeated] | None = None,
) -> str:
    """Return the document about these reports: runs side by side, then outages and what was repeated."""
    kept = list(reports)
    runs = sorted((report for report in kept if not _is_of_outage(report)), key=lambda report: str(report["date"]))
    outages = [OutageResult(**report) for report in kept if _is_of_outage(report)]
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown
    environment.filters |= {
        "verdict": verdict,
        "counts": _counts,
        "by_mode": _by_mode,
        "figures": _figures,
        "spread": _spread,
        "number": "{:,}".format,
    }
    again = {"restarts": restarts, "repeated": repeated}
    text = environment.from_string(_TEMPLATE.read_text()).render(runs=runs, outages=outages, **again)
    return text.strip() + "\n"


def _is_of_outage(report: Mapping[str, Any]) -> bool:
    return "decided_seconds" in report


def verdict(report: Mapping[str, Any]) -> str:
    """What a run says of the rate of violations; with a violation it says no more than that."""
    count, transactions = report["violations"], report["transactions"]
    if count:
        return f"**{count:,} violations in {transactions:,} transactions.**"
    return (
        f"**0 violations in {transactions:,} transactions.**\n{_RULE}: the rate is below "
        f"3/{transactions:,} = {_rate(transactions)} of a violation for each transaction."
    )


def _rate(trials: int) -> str:
    return f"{Decimal(f'{min(3 / trials, 1):.2g}'):f}" if trials else "1"


def _figures(reports: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What is counted once in a run, as the rest of a row of a table."""
    columns = [_figures_of(report) for report in reports]
    return [(name, " | ".join(column[name] for column in columns)) for name in columns[0]]


def _figures_of(report: Mapping[str, Any]) -> dict[str, str]:
    most = report["most"]
    return {
        "minutes": f"{report['seconds'] / 60:,.0f}",
        "rounds of faults, healing and checks": f"{report['rounds']:,}",
        "local transactions that committed": f"{report['transactions']:,}",
        "messages that they published": f"{report['messages']:,}",
        "halves": f"{report['halves']:,}",
        "messages that were rows of the message table": f"{report['rows']:,}",
        "transactions that the checker fenced": f"{report['rolled_back_by_the_checker']:,}",
        "messages delivered late, out of their order": f"{report['late_messages']:,}",
        "checkpoints looked at": f"{report['checkpoints']:,}",
        "longest time that readers were held up": f"{report['longest_stall_seconds']} s",
        "longest time from the last fault until all was settled": f"{report['slowest_healing_seconds']} s",
        "most memory of a relay or checker": f"{most['resident_mib']:,} MiB",
        "most threads, most open files": f"{most['threads']:,}, {most['files']:,}",
        "faults": f"{sum(report['faults'].values()):,}",
        "violations": f"{report['violations']:,}",
    }


def _kind(name: str) -> str:
    """The kind of something counted: `killed at relay.flushed` is a `killed at a step of relay`."""
    name = re.sub(r"^a line of .* (?=to each node)", "a slow line ", name)
    name = re.sub(r"^.*(table|row\b.*) locked", "a table or row locked", name)
    at = re.fullmatch(r"(\w+ at) (\w+)(\.\w+)+", name)
    plain = re.sub(r"^\w+ (?=application )|: .*|, for a minute$| before$| after$", "", name)
    return f"{at[1]} a step of {at[2]}" if at else plain


def _counts(reports: Sequence[Mapping[str, Any]], field: str) -> list[tuple[str, str]]:
    """How often each kind was met in all runs."""
    kinds: Counter[str] = Counter()
    for report in reports:
        for name, count in report[field].items():
            kinds[_kind(name)] += count
    return [(kind, f"{count:,}") for kind, count in sorted(kinds.items())]


def _by_mode(pauses: Mapping[str, float]) -> list[str]:
    """The rows of a table, its head first: the slowest message of each step, by mode."""
    parts = {name: name.split(", mode ") for name in pauses}
    steps, modes = (list(dict.fromkeys(column)) for column in zip(*parts.values(), strict=True))
    cells = ((step, *(pauses.get(f"{step}, mode {mode}", "") for mode in modes)) for step in steps)
    return [" | ".join(map(str, row)) for row in (("seconds", *modes), ["---"] * (len(modes) + 1), *cells)]


_STEP = re.compile(r"records waited ([\d.]+) s, .* slowest ([\d.]+) s, beyond Kafka's own time ([\d.]+) s")


def restarts_of(pauses: str) -> Repeated:
    worst: defaultdict[str, list[float]] = defaultdict(list)
    runs = pauses.split("run ")[1:]
    for run in runs:
        waited, slowest, beyond = zip(*_STEP.findall(run), strict=True)
        worst["slowest message, beyond Kafka's own time"].append(max(map(float, beyond)))
        worst["slowest message"].append(max(map(float, slowest)))
        worst["Kafka's own time, longest of the steps"].append(max(map(float, waited)))
        worst["longest pause of an owner"].append(max(map(float, re.findall(r"pause ([\d.]+)", run))))
    return {"runs": str(len(runs)), "figures": dict(worst)}


def repeated_of(table: str) -> dict[str, Repeated]:
    """Return for each file of tests how many of its tests passed, and what these measured."""
    passed, found = defaultdict[str, list[bool]](list), defaultdict[str, defaultdict[str, list[float]]](_lists)
    for line in table.splitlines()[2:]:
        _, test, outcome, seconds, measured = (cell.strip() for cell in line.strip().strip("|").split("|"))
        file = test.partition("::")[0]
        passed[file].append(outcome == "passed")
        figures = [f"duration, seconds: {seconds}", *filter(None, measured.split("; "))]
        for name, value in (figure.rsplit(": ", 1) for figure in figures if outcome == "passed"):
            found[file][name].append(float(value))
    return {file: {"runs": f"{sum(of)} of {len(of)}", "figures": found[file]} for file, of in passed.items()}


def _lists() -> defaultdict[str, list[float]]:
    return defaultdict(list)


def _spread(figures: Mapping[str, Sequence[float]], form: str) -> list[tuple[str, str]]:
    """The least, median and most of each figure, as the rest of a row of a table."""
    spreads = {name: (min(of), median(of), max(of)) for name, of in figures.items()}
    return [(name, " | ".join(format(value, form) for value in spread)) for name, spread in spreads.items()]


_PLACE = re.compile(r" --report [^\s\"]+")


def keep(report: Path, folder: Path) -> Path:
    """Keep a report, without the place where the run left it; return where it lies now."""
    text = report.read_text()
    if report.suffix == ".txt":
        content, name = restarts_of(text), ROLLING
    elif report.suffix == ".md":
        name, former = REPEATED, folder / REPEATED
        content = (json.loads(former.read_text()) if former.exists() else {}) | repeated_of(text)
    else:
        content = json.loads(_PLACE.sub("", text))
        date = content.get("environment", content)["date"][:10]
        name = f"{date}-outage.json" if _is_of_outage(content) else f"{date}-seed-{content['seed']}.json"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / name
    kept.write_text(json.dumps(content, ensure_ascii=False) + "\n")
    return kept


Folder = Annotated[Path, typer.Option(help="Folder with the reports that are kept.")]
Document = Annotated[Path, typer.Option(help="The document.")]
Report = Annotated[Path | None, typer.Option("--keep", help="A report to keep first.")]


def main(results: Folder = FOLDER, path: Document = Path("docs/torture.md"), report: Report = None) -> None:
    if report is not None:
        keep(report, results)
    kept = {file.name: json.loads(file.read_text()) for file in sorted(results.glob("*.json"))}
    again = (kept.pop(name, None) for name in (ROLLING, REPEATED))
    path.write_text(document(kept.values(), *again))


if __name__ == "__main__":
    typer.run(main)
