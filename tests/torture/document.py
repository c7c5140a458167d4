"""`python -m tests.torture.document`: makes docs/torture.md, and its chart, from the reports that are kept.

A report is kept with `--keep build/torture/report.json`. No figure in the document is typed by hand.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.torture.chart import draw_faults
from tests.torture.outage import OutageResult

FOLDER = Path(__file__).parent / "results"

_HEAD = """# Torture

Made by `python -m tests.torture.document` from the reports in `tests/torture/results/`; no figure is typed by hand.

Three brokers, Postgres with a standby, three applications, two relays and two checkers run as processes. They are
killed and stopped at random and at named steps; their requests are dropped, delayed and cut by proxies, and an EndTxn
is kept until its producer's next transaction; the database fails over, goes away, and is locked and used up by others.
After each round of faults everything is healed, and the invariants of [reliability.md](reliability.md#invariants) are
checked, from the log, the tables, and a reader that was always there. Repeat a run with its command and its seed: the
choices are the same, their timing is the machine's.
"""

_RULE = "With 95 % confidence less than 3/n (rule of three, for independent trials)"


def document(reports: Sequence[Mapping[str, Any]], charts: Path) -> str:
    """The document.

    Args:
        reports: Of the runs that are kept.
        charts: Folder for the charts, beside the document.
    """
    runs = sorted((report for report in reports if not _is_of_outage(report)), key=lambda report: str(report["date"]))
    sections = [_section(report, charts) for report in runs]
    sections += [_outage(OutageResult(**report)) for report in reports if _is_of_outage(report)]
    return "\n".join([_HEAD, *(sections or ["No report is kept yet.\n"])])


def _section(report: Mapping[str, Any], charts: Path) -> str:
    chart = charts / f"seed-{report['seed']}.svg"
    draw_faults(report["faults"], chart)
    parts = [
        f"## {report['date'][:10]}, {report['seconds'] / 60:,.0f} minutes, seed {report['seed']}",
        verdict(report),
        _where(report),
        _table(["figure", "value"], _figures(report)),
        "### Faults\n\nHow often each kind was met, and the rate of violations for each that 0 violations leave open.",
        _table(["fault", "times", "violations for each, less than"], _faults(report)),
        f"![Faults]({charts.name}/{chart.name})",
    ]
    return "\n\n".join(parts) + "\n"


def _is_of_outage(report: Mapping[str, Any]) -> bool:
    return "decided_seconds" in report


def _outage(result: OutageResult) -> str:
    what = "so many halves wait for a database that is down, while another database goes on"
    parts = [
        f"## {result.environment['date'][:10]}, an outage: {what}",
        _where(result.environment),
        _table(["figure", "value"], [*result.figures(), ("violations", f"{len(result.wrong):,}")]),
    ]
    return "\n\n".join(parts) + "\n"


def verdict(report: Mapping[str, Any]) -> str:
    """What a run says of the rate of violations; with a violation it says no more than that."""
    count, transactions = report["violations"], report["transactions"]
    if count:
        return f"**{count:,} violations in {transactions:,} transactions.**"
    return (
        f"**0 violations in {transactions:,} transactions.** {_RULE}: the rate is below "
        f"3/{transactions:,} = {_rate(transactions)} of a violation for each transaction."
    )


def _rate(trials: int) -> str:
    """The bound of the rule of three."""
    return f"{min(3 / trials, 1):.2g}" if trials else "1"


def _where(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    place = f"{machine['system']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    invariants = report.get("invariants")
    return "\n".join(
        [
            f"- Command: `{report['command']}`, commit `{report['commit']}`, {report['date']}",
            f"- Machine: {place}, load before the run {machine['load_before']}",
            f"- Versions: {', '.join(f'{name} {version}' for name, version in report['versions'].items())}",
            *([f"- Invariants: {', '.join(invariants)}"] if invariants else []),
        ]
    )


def _figures(report: Mapping[str, Any]) -> list[list[str]]:
    most = report["most"]
    return [
        ["seconds", f"{report['seconds']:,}"],
        ["rounds of faults, healing and checks", f"{report['rounds']:,}"],
        ["local transactions that committed", f"{report['transactions']:,}"],
        ["messages that they published", f"{report['messages']:,}"],
        ["halves", f"{report['halves']:,}"],
        ["transactions that the checker fenced", f"{report['rolled_back_by_the_checker']:,}"],
        ["messages delivered late, out of their order", f"{report['late_messages']:,}"],
        ["checkpoints looked at", f"{report['checkpoints']:,}"],
        ["longest time that readers were held up", f"{report['longest_stall_seconds']} s"],
        ["longest time from the last fault until all was settled", f"{report['slowest_healing_seconds']} s"],
        ["most memory of a relay or checker", f"{most['resident_mib']:,} MiB"],
        ["most threads, most open files", f"{most['threads']:,}, {most['files']:,}"],
        ["faults", f"{sum(report['faults'].values()):,}"],
        *([name, f"{count:,}"] for name, count in report["outcomes"].items()),
        *([["ended early", report["ended_early"].splitlines()[0]]] if report.get("ended_early") else []),
        ["violations", f"{report['violations']:,}"],
    ]


def _faults(report: Mapping[str, Any]) -> list[list[str]]:
    clean = report["violations"] == 0
    return [[name, f"{count:,}", _rate(count) if clean else ""] for name, count in report["faults"].items()]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def keep(report: Path, folder: Path) -> Path:
    """Keep a report; where it lies now."""
    content = json.loads(report.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    if _is_of_outage(content):
        name = f"{content['environment']['date'][:10]}-outage.json"
    else:
        name = f"{content['date'][:10]}-seed-{content['seed']}.json"
    return Path(shutil.copy(report, folder / name))


Folder = Annotated[Path, typer.Option(help="Folder with the reports that are kept.")]
Document = Annotated[Path, typer.Option(help="The document; its charts lie beside it.")]
Report = Annotated[Path | None, typer.Option("--keep", help="A report to keep first.")]


def main(results: Folder = FOLDER, path: Document = Path("docs/torture.md"), report: Report = None) -> None:
    """Make the document from the reports that are kept."""
    if report is not None:
        keep(report, results)
    reports = [json.loads(file.read_text()) for file in sorted(results.glob("*.json"))]
    path.write_text(document(reports, path.with_suffix("")))


if __name__ == "__main__":
    typer.run(main)
