"""What an examination finds, and how it is printed: `outbox doctor`, and `--check` of a service."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rich.table import Column, Table
from rich.text import Text

from outbox._service.exit_codes import Exit
from outbox._service.output import PlainConsole, print_json


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination.

    Args:
        problem: What is wrong; empty if it is fine.
        fix: What to do; for a fine one, a word on what was seen.
    """

    what: str
    problem: str
    fix: str

    @property
    def fine(self) -> bool:
        return not self.problem

    def document(self) -> dict[str, object]:
        finding, fix = (self.fix, None) if self.fine else (self.problem, self.fix)
        return {"what": self.what, "fine": self.fine, "finding": finding, "fix": fix}


def show_findings(findings: Iterable[Finding], *, as_json: bool = False) -> None:
    found = list(findings)
    if as_json:
        print_json({"fine": all(finding.fine for finding in found), "findings": [one.document() for one in found]})
    else:
        PlainConsole().print(_table(found))
    if not all(finding.fine for finding in found):
        raise SystemExit(Exit.FINDINGS)


def of_channel(name: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings with the name of their channel before what they are about; empty: there is one channel only."""
    for finding in findings:
        yield replace(finding, what=f"{name}: {finding.what}") if name else finding


def _table(found: Iterable[Finding]) -> Table:
    table = Table("", *(Column(name, overflow="fold") for name in ("what", "finding", "fix")), box=None)
    for finding in found:
        if finding.fine:
            table.add_row(Text("ok", "green"), finding.what, finding.fix, "")
        else:
            table.add_row(Text("!!", "red"), finding.what, finding.problem, finding.fix)
    return table
