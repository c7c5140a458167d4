"""`outbox checker settlement`: the settlement audit, once, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import psycopg
import typer
from rich.table import Table
from rich.text import Text

from checker.connection import connect
from checker.rules.settlement import MEANINGS, ChannelProgress
from checker.settings import CheckerSettings, DatabaseSettings
from checker.upkeep import settlement_audit as settlement
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.settlement_audit import Audit, Undelivered
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import verify_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connection_problem
from outbox._service.exit_codes import Exit
from outbox._service.output import PlainConsole
from outbox._service.redaction import visible
from outbox.errors import ConfigurationError

Found = Mapping[str, Sequence[Undelivered]]
"""What was found, by database."""


def open_reader(settings: CheckerSettings) -> DeliveryReader:
    """Verify the channel, and return a reader of its delivery."""
    admin = admin_client(settings.connection())
    return DeliveryReader(settings.connection(), admin, verify_channel(admin, settings.channel_names()))


def databases(settings: CheckerSettings) -> Mapping[str, DatabaseSettings]:
    """Return the databases by name."""
    found = settings.all_databases()
    if not found:
        raise ConfigurationError("no database is configured: set OUTBOX_POSTGRES_URL, or databases in the TOML file")
    return found


def show_settlement(settings: CheckerSettings, *, as_json: bool) -> None:
    """Audit all databases once, and print what was found."""
    with closing(open_reader(settings)) as reader:
        progress = reader.progress()
        found = {
            name: _audit(name, database, settings, reader, progress) for name, database in databases(settings).items()
        }
    if as_json:
        typer.echo(json.dumps(_as_json(found, progress), indent=2))
    else:
        _print(found, progress, settings)
    if any(found.values()):
        raise SystemExit(Exit.FINDINGS)
    if progress.problems:
        raise SystemExit(Exit.UNPROVABLE)


def _audit(
    name: str, database: DatabaseSettings, settings: CheckerSettings, reader: DeliveryReader, progress: ChannelProgress
) -> Sequence[Undelivered]:
    table = CallbackTable(database.tables())
    audit = Audit(table, settings.channel, settings.settlement_max_age_ms, reader.read, reader.rolled_back)
    try:
        with connect(database, "settlement", settlement.OPTIONS) as connection:
            table.verify(connection)
            return audit.run(connection, progress)
    except psycopg.Error as error:
        reason = connection_problem(error, database.connection_string())
        raise ConfigurationError(f"database {name!r} cannot be audited: {reason}") from error


def _as_json(found: Found, progress: ChannelProgress) -> Mapping[str, Any]:
    return {
        "undelivered": [
            {
                "database": name,
                "group": one.group,
                "kind": str(one.delay),
                "detail": one.detail,
                "count": one.count,
                "oldest": one.oldest.isoformat(),
                "examples": one.examples,
            }
            for name, findings in found.items()
            for one in findings
        ],
        "problems": progress.problems,
    }


def _print(found: Found, progress: ChannelProgress, settings: CheckerSettings) -> None:
    console = PlainConsole()
    if any(found.values()):
        title = f"committed transactions of channel {settings.channel} that are not delivered"
        table = Table("database", "group", "count", "oldest", "what", "examples", title=title)
        for name, findings in found.items():
            for one in findings:
                what = f"{one.delay}: {MEANINGS[one.delay]} ({one.detail})"
                oldest = one.oldest.isoformat(" ", "seconds")
                table.add_row(name, one.group, str(one.count), oldest, what, "\n".join(one.examples))
        console.print(table)
    else:
        console.print(
            f"no committed transaction that is older than {settings.settlement_max_age_ms / 1000:.0f} s waits: "
            f"{', '.join(found)}"
        )
    for problem in progress.problems:
        console.print(Text.assemble(("not all rows could be judged:", "yellow"), f" {visible(problem)}"))
