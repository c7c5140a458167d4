"""`outbox checker`: run the checker, or check what it would find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from checker import metrics
from checker.connection import connect_and_verify
from checker.service import CheckerService
from checker.settings import CheckerSettings, DatabaseSettings
from outbox._cli.setting_options import Check, layers, setting_options
from outbox._operations.doctor import examine_encryption
from outbox._operations.finding import Finding
from outbox._service.findings import examine_channel
from outbox._service.run import check_service, run_service
from outbox.errors import ConfigurationError

app = typer.Typer(
    epilog=layers(CheckerSettings),
    help="Run the checker: it asks the callback tables what became of undecided transactions.",
)


@app.callback(invoke_without_command=True)
@setting_options(CheckerSettings)
def run(given: dict[str, Any], check: Check = False) -> None:  # noqa: FBT002 - a flag
    """Run the checker until SIGTERM."""
    if check:
        check_service(CheckerSettings, given, examine)
    else:
        run_service(CheckerSettings, given, metrics.TABLE, CheckerService)


def examine(settings: CheckerSettings) -> Iterator[Finding]:
    """Check settings, brokers, topics, encryption and all databases, without joining the group or writing anything."""
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
    return Finding(what, "", f"its tables and rights are fine; groups {', '.join(database.groups)}")
