"""The one list of checks: `outbox doctor`, and `--check` of relay and checker, run those of their role."""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

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
    Topics,
    broker_problem,
    describe_channel,
    examine_allow_list,
    examine_checkpoints,
    examine_contract,
    examine_encryption,
    examine_services,
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

S = TypeVar("S", bound=ServiceSettings)


class Examiner(enum.Enum):
    """Who examines: with its settings, and its rights."""

    DOCTOR = "outbox doctor"
    RELAY = "outbox relay --check"
    CHECKER = "outbox checker --check"


@dataclass
class Subject:
    """One channel, as its settings describe it.

    Args:
        is_shared: Whether other channels have the same `postgres_url`, so that this database belongs to none of them.
        topics: Its topics; None until they can be read, or where the protocol cannot work with them.
        kafka: librdkafka properties; empty until they are found to be valid.
    """

    examiner: Examiner
    settings: Any
    tables: Mapping[str, TableSettings] = field(default_factory=dict)
    databases: Mapping[str, CheckerDatabase] = field(default_factory=dict)
    is_shared: bool = False
    topics: Topics | None = None
    kafka: Mapping[str, Any] = field(default_factory=dict)
    is_silent: bool = True


class Check(NamedTuple):
    """What is looked at, by whom."""

    examine: Callable[[Subject], Iterable[Finding]]
    examiners: frozenset[Examiner]


def _settings(subject: Subject) -> Iterator[Finding]:
    yield Finding("settings", "", f"are valid, profile {subject.settings.profile}")


def _kafka(subject: Subject) -> Iterator[Finding]:
    settings, channel = subject.settings, subject.settings.channel_names()
    try:
        subject.kafka = settings.client_properties() if subject.examiner is Examiner.DOCTOR else settings.connection()
        subject.is_silent = False
        topics = describe_channel(subject.kafka, channel)
    except ConfigurationError as error:
        subject.is_silent |= isinstance(error, KafkaUnreachable)
        yield broker_problem(error)
        return
    yield Finding("broker", "", "answers")
    yield from examine_contract(subject.kafka, channel, settings.contract(), topics)
    if not channel_problems(channel, topics):
        subject.topics = topics


def _allow_list(subject: Subject) -> Iterator[Finding]:
    for found in examine_allow_list(subject.settings.profile, subject.settings.allowed_topics):
        if subject.examiner is Examiner.DOCTOR or not found.fine:
            yield found


def _encryption(subject: Subject) -> Iterator[Finding]:
    settings = subject.settings
    databases = {"Postgres": settings.connection_string} if subject.examiner is Examiner.DOCTOR else {}
    databases |= {f"table source {name}": table.connection_string for name, table in subject.tables.items()}
    databases |= {f"database {name}": one.connection_string for name, one in subject.databases.items()}
    yield from examine_encryption({"bootstrap.servers": settings.bootstrap_servers, **settings.kafka}, databases)


def _checkpoints(subject: Subject) -> Iterator[Finding]:
    if subject.topics is not None:
        yield from examine_checkpoints(subject.kafka, subject.settings.channel_names())


def _services(subject: Subject) -> Iterator[Finding]:
    if subject.topics is not None:
        yield from examine_services(subject.kafka, subject.settings.channel_names())


def _database(subject: Subject) -> Iterator[Finding]:
    """Yield what is found of the database that `postgres_url` names."""
    settings: DoctorSettings = subject.settings
    url = settings.connection_string()
    if (subject.tables or subject.databases) and (subject.is_shared or not url):
        return  # the file names the databases of the channel
    try:
        opened = database(settings)
    except ConfigurationError as error:
        fix = connection_remedy(url, "OUTBOX_POSTGRES_URL", str(error)) if url else "name it in OUTBOX_POSTGRES_URL"
        yield Finding("postgres", str(error), fix)
        return
    with opened:
        yield from examine_database(opened, CallbackTable(settings.table_names()))
        yield from examine_unnamed(opened, settings.table_names(), _named(subject))


def _databases(subject: Subject) -> Iterator[Finding]:
    for name, one in subject.databases.items():
        yield from examine_checker_database(name, one, partial(examine_unnamed, named=_named(subject)))


def _named(subject: Subject) -> set[Place]:
    """Return the message tables of the settings; without those whose connection string cannot be read."""
    try:
        return named_places(subject.tables)
    except ConfigurationError:
        return set()


def _sources(subject: Subject) -> Iterator[Finding]:
    channel = subject.settings.channel_names()
    yield from examine_sources(subject.tables, subject.kafka, channel, is_silent=subject.is_silent)


_ALL = frozenset(Examiner)
_DOCTOR = frozenset({Examiner.DOCTOR})
_SERVICES = _ALL - _DOCTOR
_NOT_CHECKER = _ALL - {Examiner.CHECKER}

CHECKS = (
    Check(_settings, _SERVICES),
    Check(_kafka, _ALL),
    Check(_allow_list, _NOT_CHECKER),
    Check(_encryption, _ALL),
    Check(_checkpoints, _NOT_CHECKER),
    Check(_services, _DOCTOR),
    Check(_database, _DOCTOR),
    Check(_databases, _DOCTOR),
    Check(_sources, _NOT_CHECKER),
)


def examine(subject: Subject) -> Iterator[Finding]:
    """Yield what the checks of an examiner find."""
    for check in CHECKS:
        if subject.examiner in check.examiners:
            yield from check.examine(subject)


def examine_relay(settings: Any) -> Iterator[Finding]:
    """Yield what a relay with these settings would find, without joining the group or writing anything."""
    return examine(Subject(Examiner.RELAY, settings, settings.tables))


def check_service(settings_type: type[S], given: Mapping[str, Any], examine: Callable[[S], Iterable[Finding]]) -> None:
    """Look at everything that a service needs, print what was found, and end."""

    def check() -> None:
        channels = load_all(settings_type, given)
        configure_logs("error", next(iter(channels.values())).log_format)
        show_findings(found for name, settings in channels.items() for found in of_channel(name, examine(settings)))

    guarded(check)
