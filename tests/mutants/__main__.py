"""`python -m tests.mutants`: each rule's tests, with the rule taken out; the report is kept in build/mutants."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.mutants.runner.catalogue import OPEN, RULES, catalogue
from tests.mutants.runner.mutant import Mutant
from tests.mutants.runner.run import FOLDER, Result, Verdict, control, run

console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Mutants; by default all.")] = None,
    *,
    cheap: Annotated[bool, typer.Option("--cheap", help="Only those that unit tests catch, without servers.")] = False,
    check: Annotated[bool, typer.Option(help="First see the tests pass without a mutant.")] = True,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = FOLDER / "report.json",
    list_: Annotated[bool, typer.Option("--list", help="Name all mutants, and run none.")] = False,
) -> None:
    """Take each rule out and see its tests fail; ends with 2 if one does not, or fails for another reason."""
    mutants = {name: mutant for name, mutant in catalogue().items() if _is_wanted(name, mutant, names, cheap=cheap)}
    unknown = set(names or ()) - mutants.keys()
    if unknown:
        raise SystemExit(f"there are no mutants {', '.join(sorted(unknown))}")
    if list_:
        console.print(_table(mutants, {}))
        return
    trouble = control(sorted({test for mutant in mutants.values() for test in mutant.tests})) if check else ""
    checked = trouble or ("each test passed" if check else "not tried here: `make test-all` does that")
    results: dict[str, Result] = {}
    for name, mutant in mutants.items():
        result = results[name] = run(name, mutant)
        console.print(
            f"{len(results):3} of {len(mutants)}  {result.verdict:8}  {result.seconds:6.1f} s  {name}", markup=False
        )
    console.print(_table(mutants, results))
    _write_report(report, mutants, results, checked)
    _say(results, trouble, report)


def _is_wanted(name: str, mutant: Mutant, names: list[str] | None, *, cheap: bool) -> bool:
    return (not names or name in names) and (mutant.is_cheap or not cheap)


def _table(mutants: dict[str, Mutant], results: dict[str, Result]) -> Table:
    table = Table("rule", "without it", "function that holds it", "tests", "", title="mutants")
    for name, mutant in mutants.items():
        tests = "\n".join(test.rpartition("::")[2] for test in mutant.tests)
        verdict = results[name].verdict if name in results else ""
        table.add_row(mutant.rule, str(mutant.harm), mutant.target.replace(":", " "), tests, verdict)
    for rule, why in OPEN.items():
        table.add_row(rule, "", why, "", "open")
    return table


def _write_report(path: Path, mutants: dict[str, Mutant], results: dict[str, Result], checked: str) -> None:
    found = {
        "rules": sorted(RULES),
        "open": OPEN,
        "without a mutant": checked,
        "caught": sum(result.verdict is Verdict.CAUGHT for result in results.values()),
        "mutants": {
            name: {
                "rule": mutants[name].rule,
                "harm": mutants[name].harm,
                "target": mutants[name].target,
                "tests": mutants[name].tests,
                "verdict": result.verdict,
                "why": result.why,
                "seconds": round(result.seconds, 1),
                "failures": result.reasons,
            }
            for name, result in results.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


def _say(results: dict[str, Result], trouble: str, report: Path) -> None:
    for name, result in results.items():
        if result.verdict is not Verdict.CAUGHT:
            console.print(f"{name}: {result.verdict}, {result.why}", markup=False)
    for rule, why in OPEN.items():
        console.print(f"{rule} is open: {why}", markup=False)
    if trouble:
        console.print(trouble, markup=False)
    console.print(f"report: {report}")
    if trouble or any(result.verdict is not Verdict.CAUGHT for result in results.values()):
        raise SystemExit(2)


if __name__ == "__main__":
    typer.run(main)
