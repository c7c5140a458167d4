"""`outbox checker --check`: what a checker would find, without joining the group or writing anything."""

from __future__ import annotations

from collections.abc import Iterator

from checker.connection import connect_and_verify
from checker.settings import CheckerSettings, DatabaseSettings
from outbox._operations.doctor import examine_encryption
from outbox._operations.finding import Finding
from outbox._service.findings import examine_channel
from outbox.errors import ConfigurationError


def examine(settings: CheckerSettings) -> Iterator[Finding]:
    """Check settings, brokers, topics, encryption and all databases."""
    yield from examine_channel(settings)
    databases = settings.all_databases()
    kafka = {"bootstrap.servers": settings.bootstrap_servers, **settings.kafka}
    yield from examine_encryption(kafka, {f"database {name}": one.connection_string for name, one in databases.items()})
    for name, database in databases.items():
        yield _database(name, database, settings)
    if not databases:
        yield Finding("databases", "none is configured", "set OUTBOX_POSTGRES_URL, or databases in the TOML file")


def _database(name: str, database: DatabaseSettings, settings: CheckerSettings) -> Finding:
    what = f"database {name}"
    try:
        connect_and_verify(name, database, purge=settings.purge).close()
    except ConfigurationError as error:
        return Finding(what, str(error), "start it, or correct its DSN, its tables or the rights of its role")
    return Finding(what, "", f"its tables and rights are fine; services {', '.join(database.services)}")
