"""`outbox doctor`: one line and one fix for each finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import typer

from outbox._cli.acl import Groups, Sources, Topics, configured_scope
from outbox._cli.options import DoctorSettings, Given, connection, database
from outbox._cli.setting_options import setting_options
from outbox._operations.doctor import (
    examine_allow_list,
    examine_checker_database,
    examine_database,
    examine_encryption,
    examine_kafka,
    examine_versions,
)
from outbox._operations.finding import Finding, is_silent
from outbox._operations.rights_doctor import RightsDoctor
from outbox._operations.source_doctor import Place, examine_sources, examine_unnamed, named_places
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connection_remedy
from outbox._rules.role_rights import Role, rights_of
from outbox._service.channels.channel_settings import load_all
from outbox._service.findings import of_channel, show_findings
from outbox._service.output import Json
from outbox.errors import ConfigurationError

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
    group: Groups = None,
    source: Sources = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check everything that the outbox needs; ends with 2 if something is wrong."""
    channels = load_all(DoctorSettings, given)
    findings = [] if role else list(examine_versions())
    defaults = Counter(settings.default_place() for settings in channels.values())
    for name, settings in channels.items():
        if role:
            rights = rights_of(role, configured_scope(settings, role, topic, group, source))
            found = RightsDoctor(connection(settings)).examine(rights) if rights else _no_rights(role)
        else:
            found = _examine(settings, is_shared=defaults[settings.default_place()] > 1)
        findings += of_channel(name, found)
    show_findings(findings, as_json=as_json)


def _no_rights(roles: list[Role]) -> Iterator[Finding]:
    yield Finding("rights", "", f"role {' and '.join(roles)} needs none in Kafka")


def _examine(settings: DoctorSettings, *, is_shared: bool) -> Iterator[Finding]:
    yield from examine_allow_list(settings.profile, settings.allowed_topics)
    yield from examine_encryption(connection(settings), _databases(settings))
    kafka, channel = connection(settings), settings.channel_names()
    of_kafka = list(examine_kafka(kafka, channel, settings.contract()))
    yield from of_kafka
    yield from _database(settings, is_shared=is_shared)
    for name, one in settings.databases.items():
        yield from examine_checker_database(name, one, partial(examine_unnamed, named=_named(settings)))
    yield from examine_sources(settings.tables, kafka, channel, is_silent=is_silent(of_kafka))


def _databases(settings: DoctorSettings) -> dict[str, Callable[[], str]]:
    """Return what returns the connection strings of the settings, by what they are for."""
    tables = {f"table source {name}": table.connection_string for name, table in settings.tables.items()}
    databases = {f"database {name}": one.connection_string for name, one in settings.databases.items()}
    return {"Postgres": settings.connection_string, **tables, **databases}


def _database(settings: DoctorSettings, *, is_shared: bool) -> Iterator[Finding]:
    """Yield what is found of the database that `postgres_url` names.

    Args:
        is_shared: Whether other channels have the same, so that it belongs to none of them.
    """
    if (settings.tables or settings.databases) and (is_shared or not settings.connection_string()):
        return  # the file names the databases of the channel
    try:
        opened = database(settings)
    except ConfigurationError as error:
        url = settings.connection_string()
        fix = connection_remedy(url, "OUTBOX_POSTGRES_URL") if url else "name it in OUTBOX_POSTGRES_URL"
        yield Finding("postgres", str(error), fix)
        return
    with opened:
        yield from examine_database(opened, CallbackTable(settings.table_names()))
        yield from examine_unnamed(opened, settings.table_names(), _named(settings))


def _named(settings: DoctorSettings) -> set[Place]:
    """Return the message tables of the settings; without those whose connection string cannot be read."""
    try:
        return named_places(settings.tables)
    except ConfigurationError:
        return set()
