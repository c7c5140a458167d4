"""`outbox resume`: what halts for want of numbers goes on, after an operator has decided on what was delivered."""

from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import as_created
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, may_ask, print_entries, show, show_records_read
from outbox.errors import UsageError
from outbox.operator import words
from outbox.operator.context import ONE_COMMAND
from outbox.operator.deciding.resumption import ChannelResumption, Resumption, Rows
from outbox.operator.reading.topic_walk import RECORDS
from outbox.operator.settings import Given, TableCommandSettings

app = typer.Typer(help="Let a halted table source, or half partitions without a checkpoint, go on.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(TableCommandSettings)
def resume(
    given: Given,
    source: Annotated[str, typer.Option(help="Table source in the setting tables. Default: the half partitions.")] = "",
    skip_delivered: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--skip-delivered", help="Search the real topics, and delete the rows that are there.")
    ] = False,
    deliver_again: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--deliver-again", help="Deliver all rows; consumers may get messages twice.")
    ] = False,
    not_delivered_to: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="What is not found there was not delivered; repeatable."),
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Records that are read of a topic at most.")] = RECORDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Commit first checkpoints of half partitions that were written to and have none, as after a channel grew.

    With --source: set the numbers of a halted table source, so that a relay serves it again within seconds. Real topics
    are searched: what is there is not delivered again. Stop the relays before half partitions are resumed. Ends with 2
    if it refuses a source, and with 3 if the real topics do not prove what was delivered.
    """
    may_ask(yes=yes or dry_run, as_json=as_json)
    if skip_delivered and deliver_again:
        raise UsageError("give either --skip-delivered or --deliver-again")
    rows = Rows.SKIP_DELIVERED if skip_delivered else Rows.DELIVER_AGAIN if deliver_again else None
    if rows and not source:
        raise UsageError("--skip-delivered and --deliver-again are about rows. Give --source, too.")
    case = _case(TableCommandSettings(**given), source, rows, records, frozenset(not_delivered_to or ()))
    with show_records_read() as passed:
        case.find(passed)
    if case.outcome == "possible" and not dry_run:
        if not yes:
            print_entries(_entries(case))
        if yes or typer.confirm("Go on?"):
            case.resume()
    show(case.document(), _entries(case), as_json=as_json)
    if not case.is_provable:
        raise SystemExit(Exit.UNPROVABLE)
    if case.outcome == "refused":
        raise SystemExit(Exit.FINDINGS)


def _case(
    settings: TableCommandSettings, source: str, rows: Rows | None, records: int, trusted: frozenset[str]
) -> Resumption | ChannelResumption:
    kafka, channel = settings.client_properties(), settings.channel_names()
    if not source:
        return ChannelResumption(kafka, channel, records, trusted)
    table = settings.tables.get(source)
    if table is None:
        known = ", ".join(settings.tables) or "none"
        raise UsageError(f"No table source {source!r} is configured (there are: {known}). Give --table {source}=DSN.")
    names, dsn = table.message_names(), table.connection_string()
    channel = as_created(admin_client(kafka), channel)
    return Resumption(source, names, dsn, kafka, channel, rows, records, trusted)


def _entries(case: Resumption | ChannelResumption) -> list[Entry]:
    return [words.fields(case.document()), *map(Entry, filter(None, case.consequences()))]
