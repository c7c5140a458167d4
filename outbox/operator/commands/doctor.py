"""`outbox doctor`: one line and one fix for each finding."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._rules.role_rights import Role, rights_of
from outbox._service.output import Json
from outbox._settings.layers import load_all
from outbox.operator.checks.channel_checks import examine_versions
from outbox.operator.checks.checks import Examiner, Subject, examine
from outbox.operator.checks.finding import Finding, of_channel, show_findings
from outbox.operator.checks.rights_doctor import RightsDoctor
from outbox.operator.commands.acl import Services, Sources, Topics, configured_scope
from outbox.operator.settings import DoctorSettings, Given

app = typer.Typer(help="Check broker, channel, tables, grants and versions.")


@app.callback(invoke_without_command=True)
@setting_options(DoctorSettings)
def doctor(
    given: Given,
    role: Annotated[
        list[Role] | None,
        typer.Option(help="Check only the rights in Kafka that this role needs, with its credentials; repeatable."),
    ] = None,
    topic: Topics = None,
    service: Services = None,
    source: Sources = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check everything that the outbox needs; ends with 2 if something is wrong."""
    channels = load_all(DoctorSettings, given)
    findings = [] if role else list(examine_versions())
    defaults = Counter(settings.default_place() for settings in channels.values())
    for name, settings in channels.items():
        if role:
            rights = rights_of(role, configured_scope(settings, role, topic, service, source))
            found = RightsDoctor(settings.client_properties()).examine(rights) if rights else _no_rights(role)
        else:
            is_shared = defaults[settings.default_place()] > 1
            found = examine(Subject(Examiner.DOCTOR, settings, settings.tables, settings.databases, is_shared))
        findings += of_channel(name, found)
    show_findings(findings, as_json=as_json)


def _no_rights(roles: list[Role]) -> Iterator[Finding]:
    yield Finding("rights", "", f"role {' and '.join(roles)} needs none in Kafka")
