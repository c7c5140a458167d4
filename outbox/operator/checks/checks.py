"""The one list of checks: `outbox doctor`, and `--check` of relay and checker, run those of their role."""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from outbox._kafka.topic_contract import channel_problems
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connection_remedy
from outbox._service.exit_codes import guarded
from outbox._service.logs import configure_logs
from outbox._service.settings import ServiceSettings
from outbox._settings.declared import CheckerDatabase, TableSettings
from outbox._settings.layers import load_all
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.checks.channel_checks import (
    describe_channel,
    examine_allow_list,
    examine_channel,
    examine_contract,
    examine_encryption,
)
from outbox.operator.checks.database_checks import (
    Place,
    examine_checker_database,
    examine_database,
    examine_unnamed,
    named_places,
)
from outbox.operator.checks.finding import Finding, of_channel, show_findings
from outbox.operator.checks.source_checks import examine_sources
from outbox.operator.settings import DoctorSettings, database
from outbox.protocol.names import Channel

_START_KAFKA = "start Kafka, or correct OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_KAFKA"
_CORRECT_KAFKA = "correct OUTBOX_KAFKA, or the rights of this client"

S = TypeVar("S", bound=ServiceSettings)


class Examiner(enum.Enum):
    """Who examines: with its settings, and its rights."""

    DOCTOR = "outbox doctor"
    RELAY = "outbox relay --check"
    CHECKER = "outbox checker --check"


def examine(
    examiner: Examiner,
    settings: Any,
    tables: Mapping[str, TableSettings] = MappingProxyType({}),
    databases: Mapping[str, CheckerDatabase] = MappingProxyType({}),
    *,
    is_shared: bool = False,
) -> Iterator[Finding]:
    """Yield what is found of a channel, as its settings describe it.

    Args:
        is_shared: Whether other channels have the same `postgres_url`, so that this database belongs to none of them.
    """
    is_doctor, is_checker, channel = examiner is Examiner.DOCTOR, examiner is Examiner.CHECKER, settings.channel_names()
    if not is_doctor:
        yield Finding("settings", "", f"are valid, profile {settings.profile}")
    kafka: Mapping[str, Any] = {}
    topics, is_silent = None, True
    try:
        kafka = settings.client_properties() if is_doctor else settings.connection()
        is_silent = False
        channel, topics = describe_channel(kafka, channel, half_mode=is_checker)
    except ConfigurationError as error:
        is_away = isinstance(error, KafkaUnreachable)
        is_silent |= is_away
        yield Finding("broker", str(error), _START_KAFKA if is_away else _CORRECT_KAFKA)
    else:
        yield Finding("broker", "", "answers")
        yield from examine_contract(kafka, channel, settings.contract(), topics)
    if not is_checker:
        for found in examine_allow_list(settings.profile, settings.allowed_topics):
            if is_doctor or not found.fine:
                yield found
    urls = {"Postgres": settings.connection_string} if is_doctor else {}
    urls |= {f"table source {name}": table.connection_string for name, table in tables.items()}
    urls |= {f"database {name}": one.connection_string for name, one in databases.items()}
    yield from examine_encryption({"bootstrap.servers": settings.bootstrap_servers, **settings.kafka}, urls)
    if not (is_checker or topics is None or channel.tables_only or channel_problems(channel, topics)):
        yield from examine_channel(kafka, channel, services=is_doctor)
    if is_doctor:
        yield from _databases(settings, channel, tables, databases, is_shared=is_shared)
    if not is_checker:
        yield from examine_sources(tables, kafka, channel, is_silent=is_silent)


def _databases(
    settings: DoctorSettings,
    channel: Channel,
    tables: Mapping[str, TableSettings],
    databases: Mapping[str, CheckerDatabase],
    *,
    is_shared: bool,
) -> Iterator[Finding]:
    try:
        named = named_places(tables)
    except ConfigurationError:  # the connection string of one cannot be read
        named = set()
    if not (tables or databases) or (settings.connection_string() and not is_shared):  # else the file names all
        yield from _database(settings, channel, named)
    for name, one in databases.items():
        yield from examine_checker_database(name, one, named)


def _database(settings: DoctorSettings, channel: Channel, named: set[Place]) -> Iterator[Finding]:
    """Yield what is found of the database that `postgres_url` names."""
    url = settings.connection_string()
    try:
        opened = database(settings)
    except ConfigurationError as error:
        fix = connection_remedy(url, "OUTBOX_POSTGRES_URL", str(error)) if url else "name it in OUTBOX_POSTGRES_URL"
        yield Finding("postgres", str(error), fix)
        return
    with opened:
        if not channel.tables_only:
            yield from examine_database(opened, CallbackTable(settings.table_names()))
        yield from examine_unnamed(opened, settings.table_names(), named)


def examine_relay(settings: Any) -> Iterator[Finding]:
    """Yield what a relay with these settings would find, without joining the group or writing anything."""
    return examine(Examiner.RELAY, settings, settings.tables)


def check_service(settings_type: type[S], given: Mapping[str, Any], examine: Callable[[S], Iterable[Finding]]) -> None:
    """Look at everything that a service needs, print what was found, and end."""

    def check() -> None:
        channels = load_all(settings_type, given)
        configure_logs("error", next(iter(channels.values())).log_format)
        show_findings(found for name, settings in channels.items() for found in of_channel(name, examine(settings)))

    guarded(check)
