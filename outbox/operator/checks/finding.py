"""What an examination finds, and how it is printed: `outbox doctor`, and `--check` of a service."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, show


class Finding(NamedTuple):
    """One line of the examination: what is wrong (empty: nothing), and what to do, or what was seen."""

    what: str
    problem: str
    fix: str

    @property
    def fine(self) -> bool:
        return not self.problem

    def entry(self) -> Entry:
        if self.fine:
            return Entry(f"ok  {self.what}  {self.fix}")
        return Entry(f"!!  {self.what}  {self.problem}", [self.fix])

    def document(self) -> dict[str, object]:
        finding, fix = (self.fix, None) if self.fine else (self.problem, self.fix)
        return {"what": self.what, "fine": self.fine, "finding": finding, "fix": fix}


Found = Iterator[Finding]


def show_findings(findings: Iterable[Finding], *, as_json: bool = False) -> None:
    found = list(findings)
    fine = all(finding.fine for finding in found)
    show({"fine": fine, "findings": found}, (one.entry() for one in found), as_json=as_json)
    if not fine:
        raise SystemExit(Exit.FINDINGS)


def of_channel(name: str, findings: Iterable[Finding]) -> Found:
    """Yield findings with the name of their channel before what they are about; empty: there is one channel only."""
    for finding in findings:
        yield finding._replace(what=f"{name}: {finding.what}") if name else finding
