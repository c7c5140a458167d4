"""`outbox trace`: the story of one transaction or message."""

from typing import Annotated, Any

import typer

from outbox._cli.setting_options import setting_options
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, show, show_records_read
from outbox.operator import words
from outbox.operator.context import ONE_COMMAND, missing_services, parse_id, parse_since
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.story import Status
from outbox.operator.views import story

app = typer.Typer(help="Show the history of a transaction or a message.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(OperatorSettings)
def trace(
    given: dict[str, Any],
    id_: Annotated[str, typer.Argument(metavar="ID", help="Transaction id or message id.", show_default=False)],
    since: Annotated[
        str, typer.Option(help="Search from here on: a time, or 2h before now; by default the time in the id.")
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option(help="Search this real topic, too, if its halves are gone; repeatable.")
    ] = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Print all that databases and topics hold of it, in the order of time.

    It ends with 2 if nothing is found, with 3 if something could not be read besides, and with 6 if decisions
    contradict each other or what readers see. Without Kafka it shows what the databases hold, and ends with 4.
    """
    parsed, start = parse_id(id_), parse_since(since) if since else None
    settings = OperatorSettings(**given)
    with show_records_read() as passed:
        history, silence = story(settings, parsed, start, topic or (), passed)
    needs = history.needs_services
    missing = missing_services(settings.channel_names(), history.members, halves=True) if needs else []
    show(history, [*words.story(history), *map(Entry, missing)], as_json=as_json)
    if silence is not None:
        raise silence
    if history.conclusion.state is Status.NOT_FOUND:
        raise SystemExit(Exit.UNPROVABLE if history.found.has_fault else Exit.FINDINGS)
    if history.conclusion.state is Status.CONTRADICTION:
        raise SystemExit(Exit.CONTRADICTION)
