"""`outbox find`: where the messages of a business key are."""

from typing import Annotated, Any

from outbox._cli.setting_options import option, subcommand
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, show, show_records_read, utc
from outbox.operator import views, words
from outbox.operator.settings import OperatorSettings
from outbox.operator.views import parse_since


@subcommand(OperatorSettings)
def app(
    given: dict[str, Any],
    key: Annotated[str, option("The message key, as text.", show_default=False)],
    topic: Annotated[list[str] | None, option("Only for this real topic, delivered ones too; repeatable.")] = None,
    service: Annotated[str | None, option("Only messages of this service; records do not name theirs.")] = None,
    since: Annotated[str, option("Read real topics from here on, such as 2026-11-22T06:00Z or 2h before now.")] = "24h",
    as_json: Json = False,
) -> Exit:
    """Find the messages of a key: waiting, unsettled, discarded or delivered; and name what was not searched.

    A topic is read in the one partition that its key chooses. It ends with 2 if nothing is found, with 3 if nothing is
    found and something could not be read.
    """
    settings, start = OperatorSettings(**given), parse_since(since)
    with show_records_read():
        search = views.find(settings, key.encode(), topic or (), service, start)
    head = {"channel": settings.channel, "key": key, "since_ms": start, "messages": search.found}
    covered = map(Entry, (*search.lines(utc(start)), words.NO_KEY))
    show({**head, **search.covered()}, [*words.messages(key, search.found), *covered], as_json=as_json)
    return Exit.OK if search.found else Exit.UNPROVABLE if search.has_fault else Exit.FINDINGS
