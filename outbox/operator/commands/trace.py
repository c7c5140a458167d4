"""`outbox trace`: the story of one transaction or message."""

from typing import Annotated, Any

import typer

from outbox._cli.setting_options import option, subcommand
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, show, show_records_read
from outbox.operator import words
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.story import Status
from outbox.operator.views import parse_id, parse_since, story


@subcommand(OperatorSettings)
def app(
    given: dict[str, Any],
    id_: Annotated[str, typer.Argument(metavar="ID", help="Transaction id or message id.", show_default=False)],
    since: Annotated[str, option("Search from here on: a time, or 2h before now; by default the time in the id.")] = "",
    topic: Annotated[list[str] | None, option("Real topic to search, too, if the halves are gone; repeatable.")] = None,
    as_json: Json = False,
) -> Exit:
    """Show the history of a transaction or a message: all that databases and topics hold of it.

    It ends with 2 if nothing is found, with 3 if something could not be read besides, and with 6 if decisions
    contradict each other or what readers see. Without Kafka it shows what the databases hold, and ends with 4.
    """
    parsed, start = parse_id(id_), parse_since(since) if since else None
    with show_records_read():
        found = story(OperatorSettings(**given), parsed, start, topic or ())
    show(found, words.story(found), as_json=as_json)
    if found.silence is not None:
        raise found.silence
    if found.conclusion.state is Status.NOT_FOUND:
        return Exit.UNPROVABLE if found.has_fault else Exit.FINDINGS
    return Exit.CONTRADICTION if found.conclusion.state is Status.CONTRADICTION else Exit.OK
