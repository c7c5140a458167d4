"""`outbox doctor`: one line and one fix for each finding."""

from collections import Counter

from outbox._cli.setting_options import subcommand
from outbox._service.output import Json
from outbox._settings.layers import load_all
from outbox.operator.checks.checks import examine
from outbox.operator.checks.finding import Finding, of_channel, show_findings
from outbox.operator.settings import DoctorSettings, Given


@subcommand(DoctorSettings)
def app(given: Given, as_json: Json = False) -> None:
    """Check broker, channel, tables and grants; ends with 2 if something is wrong."""
    channels = load_all(DoctorSettings, given)
    findings: list[Finding] = []
    defaults = Counter(settings.default_place() for settings in channels.values())
    for name, settings in channels.items():
        is_shared = defaults[settings.default_place()] > 1
        findings += of_channel(name, examine(settings, is_shared=is_shared))
    show_findings(findings, as_json=as_json)
