"""`outbox doctor`: one line and one fix for each finding."""

from collections import Counter

import typer

from outbox._cli.setting_options import setting_options
from outbox._service.output import Json
from outbox._settings.layers import load_all
from outbox.operator.checks.checks import Examiner, examine
from outbox.operator.checks.finding import Finding, of_channel, show_findings
from outbox.operator.settings import DoctorSettings, Given

app = typer.Typer(help="Check broker, channel, tables and grants.")


@app.callback(invoke_without_command=True)
@setting_options(DoctorSettings)
def doctor(given: Given, as_json: Json = False) -> None:  # noqa: FBT002 - a flag
    """Check everything that the outbox needs; ends with 2 if something is wrong."""
    channels = load_all(DoctorSettings, given)
    findings: list[Finding] = []
    defaults = Counter(settings.default_place() for settings in channels.values())
    for name, settings in channels.items():
        is_shared = defaults[settings.default_place()] > 1
        found = examine(Examiner.DOCTOR, settings, is_shared=is_shared)
        findings += of_channel(name, found)
    show_findings(findings, as_json=as_json)
