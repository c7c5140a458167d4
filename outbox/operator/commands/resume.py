"""`outbox resume`: what halts for want of numbers goes on, after an operator has decided on what was delivered."""

from typing import Annotated

import typer

from outbox._cli.setting_options import option, subcommand
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import as_created
from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, may_ask, print_entries, show, show_records_read
from outbox.errors import UsageError
from outbox.operator import words
from outbox.operator.deciding.resumption import ChannelResumption, Resumption
from outbox.operator.reading.topic_walk import RECORDS
from outbox.operator.settings import Given, OperatorSettings


@subcommand(OperatorSettings)
def app(
    given: Given,
    source: Annotated[str, option("Table source in the setting tables. Default: the half partitions.")] = "",
    skip_delivered: Annotated[bool, option("Delete rows that are on their real topics.", "--skip-delivered")] = False,
    deliver_again: Annotated[bool, option("Deliver all rows, maybe twice.", "--deliver-again")] = False,
    not_delivered_to: Annotated[
        list[str] | None, option("What is not there was not delivered; repeatable.", metavar="TOPIC")
    ] = None,
    records: Annotated[int, option("Records that are read of a topic at most.", min=1)] = RECORDS,
    dry_run: Annotated[bool, option("Show what would happen.", "--dry-run")] = False,
    yes: Annotated[bool, option("Do not ask.", "--yes")] = False,
    as_json: Json = False,
) -> Exit:
    """Let a halted table source, or half partitions without a checkpoint, go on.

    Half partitions that were written to and have no checkpoint, as after a channel grew, get a first one. With --source
    it sets the numbers of a halted table source, so that a relay serves it again within seconds. Real topics
    are searched: what is there is not delivered again. Stop the relays before half partitions are resumed. Ends with 2
    if it refuses a source, and with 3 if the real topics do not prove what was delivered.
    """
    may_ask(yes=yes or dry_run, as_json=as_json)
    if skip_delivered and deliver_again:
        raise UsageError("give either --skip-delivered or --deliver-again")
    skips = skip_delivered if skip_delivered or deliver_again else None
    if skips is not None and not source:
        raise UsageError("--skip-delivered and --deliver-again are about rows. Give --source, too.")
    case = _case(OperatorSettings(**given), source, records, frozenset(not_delivered_to or ()), skips=skips)
    with show_records_read():
        case.find()
    if case.outcome == "possible" and not dry_run:
        if not yes:
            print_entries(_entries(case))
        if yes or typer.confirm("Go on?"):
            case.resume()
    show(case.document(), _entries(case), as_json=as_json)
    end = Exit.FINDINGS if case.outcome == "refused" else Exit.OK
    return end if case.is_provable else Exit.UNPROVABLE


def _case(
    settings: OperatorSettings, source: str, records: int, trusted: frozenset[str], *, skips: bool | None
) -> Resumption | ChannelResumption:
    kafka, channel = settings.client_properties(), settings.channel_names()
    if not source:
        return ChannelResumption(kafka, channel, records, trusted)
    if (table := settings.tables.get(source)) is None:
        known = ", ".join(settings.tables) or "none"
        raise UsageError(f"No table source {source!r} is configured (there are: {known}). Give --table {source}=DSN.")
    messages, dsn = MessageTable(table.message_names()), table.connection_string()
    channel = as_created(admin_client(kafka), channel)
    return Resumption(source, messages, dsn, kafka, channel, skips, records, trusted)


def _entries(case: Resumption | ChannelResumption) -> list[Entry]:
    return [words.fields(case.document()), *map(Entry, filter(None, case.consequences()))]
