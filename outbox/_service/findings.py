"""What an examination found, as a table; and the examination of a service's channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rich.table import Table
from rich.text import Text

from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client
from outbox._kafka.topic_contract import channel_problems, contract_problems
from outbox._operations.doctor import broker_problem, examine_warnings
from outbox._operations.finding import Finding
from outbox._service.contract_monitor import describe_all
from outbox._service.exit_codes import Exit
from outbox._service.output import PlainConsole, print_json
from outbox._service.settings import ServiceSettings
from outbox.errors import ConfigurationError


def show_findings(findings: Iterable[Finding], *, as_json: bool = False) -> None:
    """Print one line and one fix for each finding."""
    found = list(findings)
    if as_json:
        print_json({"fine": all(finding.fine for finding in found), "findings": [_fields(one) for one in found]})
    else:
        PlainConsole().print(_table(found))
    if not all(finding.fine for finding in found):
        raise SystemExit(Exit.FINDINGS)


def of_channel(name: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings with the name of their channel before what they are about; empty: there is one channel only."""
    for finding in findings:
        yield replace(finding, what=f"{name}: {finding.what}") if name else finding


def _fields(finding: Finding) -> dict[str, object]:
    fine = finding.fine
    return {
        "what": finding.what,
        "fine": fine,
        "finding": finding.fix if fine else finding.problem,
        "fix": None if fine else finding.fix,
    }


def _table(found: Iterable[Finding]) -> Table:
    table = Table("", "what", "finding", "fix", box=None)
    for finding in found:
        if finding.fine:
            table.add_row(Text("ok", "green"), finding.what, finding.fix, "")
        else:
            table.add_row(Text("!!", "red"), finding.what, finding.problem, finding.fix)
    return table


def examine_channel(settings: ServiceSettings) -> Iterator[Finding]:
    """Yield settings, broker, and the contract of the channel's topics."""
    yield Finding("settings", "", f"are valid, profile {settings.profile}")
    channel = settings.channel_names()
    try:
        admin = admin_client(settings.connection())
        topics = describe_all(admin, channel, FIRST_ANSWER_SECONDS)
    except ConfigurationError as error:
        yield broker_problem(error)
        return
    yield Finding("broker", "", "answers")
    problems = [*channel_problems(channel, topics), *contract_problems(channel, topics, settings.contract())]
    yield from (Finding(f"contract: {problem.rule}", problem.what, problem.fix) for problem in problems)
    if channel.half_topic in topics:
        yield from examine_warnings(admin, channel, topics, settings.contract())
    if not problems:
        partitions = topics[channel.half_topic].partitions
        yield Finding("contract", "", f"the topics of {channel.name} keep it: {partitions} partitions")
