"""`outbox find`: where the messages of a business key are."""

import time
from typing import Annotated, Any

import typer

from outbox._cli.setting_options import setting_options
from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client
from outbox._kafka.channel import verify_channel
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, print_entry, print_json, show_records_read, utc
from outbox._settings.declared import NO_TABLES
from outbox.errors import ConfigurationError
from outbox.operator.context import ONE_COMMAND, RECORDS, parse_since
from outbox.operator.reading.key_search import FoundMessage, KeySearch
from outbox.operator.settings import OperatorSettings

_NO_KEY = "A transaction that was rolled back leaves no key."

app = typer.Typer(help="Find the messages of a key: waiting, unsettled, discarded or delivered.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(OperatorSettings)
def find(
    given: dict[str, Any],
    key: Annotated[str, typer.Option(help="The message key, as text.", show_default=False)],
    topic: Annotated[
        list[str] | None, typer.Option(help="Only messages for this real topic, delivered ones too; repeatable.")
    ] = None,
    service: Annotated[
        str | None, typer.Option(help="Only messages of this service; records do not name theirs.")
    ] = None,
    since: Annotated[
        str, typer.Option(help="Read real topics from here on, such as 2026-11-22T06:00Z or 2h before now.")
    ] = "24h",
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Print where each message of a key is, what was searched for it, and what was not.

    A topic is read in the one partition that its key chooses. It ends with 2 if nothing is found, with 3 if nothing is
    found and something could not be read.
    """
    settings, start = OperatorSettings(**given), parse_since(since, time.time_ns() // 1_000_000)
    with show_records_read() as passed:
        search = KeySearch(key.encode(), topic or (), service, RECORDS, passed)
        _search(settings, search, start)
    if not topic:
        search.miss("what was delivered", "without --topic no record of a real topic is looked at")
    found = sorted(search.found, key=lambda message: message.time_ms)
    if as_json:
        print_json(
            {
                "channel": settings.channel,
                "key": key,
                "since_ms": start,
                "messages": found,
                "tables": search.tables,
                "searched": search.searched,
                "not_searched": search.unread,
            }
        )
    else:
        _show(key, found, search, start)
    if not found:
        raise SystemExit(Exit.UNPROVABLE if any(gap.is_fault for gap in search.unread) else Exit.FINDINGS)


def _search(settings: OperatorSettings, search: KeySearch, start: int) -> None:
    """Search all of it; without Kafka the tables alone."""
    search.message_tables(settings.tables)
    if not settings.tables:
        search.miss("rows of table mode", NO_TABLES)
    try:
        kafka, names = settings.client_properties(), settings.channel_names()
        search.channel_topics(kafka, verify_channel(admin_client(kafka), names, FIRST_ANSWER_SECONDS))
        search.real_topics(kafka, names.relay_group, start)
    except ConfigurationError as error:
        search.miss("Kafka", str(error), is_fault=True)


def _show(key: str, found: list[FoundMessage], search: KeySearch, start: int) -> None:
    console = PlainConsole()
    console.print(f"{len(found)} message{'' if len(found) == 1 else 's'} with key {key}")
    for one in found:
        of = f", service {one.service}" if one.service else ""
        print_entry(
            console,
            f"{one.standing.upper()}  {utc(one.time_ms, 'milliseconds')}  for {one.topic}{of}",
            one.place,
            one.detail,
            f"outbox trace {one.id}" if one.id else "no relay wrote it: it has no message id",
        )
    console.print(f"searched: tables of {', '.join(search.tables) or 'no source'}; topics from {utc(start)} on:")
    for span in search.searched:
        console.print(f"  {span.topic}/{span.partition}: {span.from_offset} to {span.to_offset} of {span.end_offset}")
    for gap in search.unread:
        console.print(f"not searched: {gap}")
    console.print(_NO_KEY)
