"""The one list of checks: `outbox doctor`, and `--check` of relay and checker, run those of their role."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client, describe_topics
from outbox._kafka.channel import as_created
from outbox._kafka.topic_contract import channel_problems
from outbox._service.exit_codes import guarded
from outbox._service.logs import configure_logs
from outbox._service.settings import ServiceSettings
from outbox._settings.declared import DatabasesSettings, MessageTables, TableSettings
from outbox._settings.layers import load_all
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.checks import channel_checks
from outbox.operator.checks.database_checks import examine_databases
from outbox.operator.checks.finding import Finding, Found, of_channel, show_findings
from outbox.operator.checks.source_checks import examine_sources
from outbox.operator.settings import DoctorSettings

_START_KAFKA = "start Kafka, or correct OUTBOX_BOOTSTRAP_SERVERS and OUTBOX_KAFKA"
_CORRECT_KAFKA = "correct OUTBOX_KAFKA, or the rights of this client"


def examine(settings: Any, *, is_shared: bool = False) -> Found:
    """Yield what is found of a channel, as the settings of a doctor, a relay or a checker describe it, with its rights.

    If `is_shared`, other channels have the same `postgres_url`, so that this database belongs to none of them.
    """
    is_doctor, is_checker = isinstance(settings, DoctorSettings), not isinstance(settings, MessageTables)
    channel = settings.channel_names()
    if not is_doctor:
        yield Finding("settings", "", f"are valid, profile {settings.profile}")
    tables: Mapping[str, TableSettings] = {} if is_checker else settings.tables
    databases = settings.all_databases() if isinstance(settings, DatabasesSettings) else {}
    kafka: Mapping[str, Any] = {}
    topics, is_silent = None, True
    try:
        kafka = settings.client_properties() if is_doctor else settings.connection()
        is_silent = False
        admin = admin_client(kafka)
        channel = channel if is_checker else as_created(admin, channel, FIRST_ANSWER_SECONDS)
        topics = describe_topics(admin, channel.topics, FIRST_ANSWER_SECONDS)
    except ConfigurationError as error:
        is_away = isinstance(error, KafkaUnreachable)
        is_silent |= is_away
        yield Finding("broker", str(error), _START_KAFKA if is_away else _CORRECT_KAFKA)
    else:
        yield Finding("broker", "", "answers")
        yield from channel_checks.examine_contract(kafka, channel, settings.contract(), topics)
    if not is_checker:
        for found in channel_checks.examine_allow_list(settings.profile, settings.allowed_topics):
            if is_doctor or not found.fine:
                yield found
    urls = {"Postgres": settings.connection_string} if is_doctor else {}
    urls |= {f"table source {name}": table.connection_string for name, table in tables.items()}
    urls |= {f"database {name}": one.connection_string for name, one in databases.items()}
    yield from channel_checks.examine_encryption(
        {"bootstrap.servers": settings.bootstrap_servers, **settings.kafka}, urls
    )
    if not (is_checker or topics is None or channel.tables_only or channel_problems(channel, topics)):
        yield from channel_checks.examine_channel(kafka, channel, services=is_doctor)
    if is_doctor:
        yield from examine_databases(settings, half_mode=not channel.tables_only, is_shared=is_shared)
    if not is_checker:
        yield from examine_sources(tables, kafka, channel, is_silent=is_silent)


def check_service(
    declared: type[ServiceSettings], given: Mapping[str, Any], examine: Callable[[Any], Iterable[Finding]] = examine
) -> None:
    def check() -> None:
        channels = load_all(declared, given)
        configure_logs("error", next(iter(channels.values())).log_format)
        show_findings(found for name, settings in channels.items() for found in of_channel(name, examine(settings)))

    guarded(check)
