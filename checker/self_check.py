"""`outbox checker --check`: what a checker would find, without joining the group or writing anything."""

from collections.abc import Iterator

from checker.connection import UnreachableError, connect_and_verify
from checker.settings import CheckerSettings
from outbox._postgres.dsn import connection_remedy
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError
from outbox.operator.checks.checks import examine
from outbox.operator.checks.finding import Finding


def examine_checker(settings: CheckerSettings) -> Iterator[Finding]:
    """Check settings, brokers, topics, encryption and all databases, without joining the group or writing anything."""
    databases = settings.all_databases()
    yield from examine(settings)
    for name, database in databases.items():
        yield _database(name, database, settings)
    if not databases:
        yield Finding("databases", "none is configured", "set OUTBOX_POSTGRES_URL, or databases in the TOML file")


def _database(name: str, database: CheckerDatabase, settings: CheckerSettings) -> Finding:
    what = f"database {name}"
    try:
        connect_and_verify(name, database, purge=settings.purge).close()
    except UnreachableError as error:
        remedy = connection_remedy(database.connection_string(), "the setting databases", str(error))
        return Finding(what, str(error), remedy)
    except ConfigurationError as error:
        return Finding(what, str(error), "correct its DSN, its tables or the rights of its role")
    return Finding(what, "", f"its tables and rights are fine; services {', '.join(database.services)}")
