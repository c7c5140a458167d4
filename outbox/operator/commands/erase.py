"""`outbox erase`: delete what waits or is discarded of a business key."""

from typing import Annotated

import structlog
import typer

from outbox._cli.setting_options import option, subcommand
from outbox._security.own_principal import recorded_name
from outbox._service.exit_codes import Exit
from outbox._service.logs import configure_logs
from outbox._service.output import Entry, may_ask, print_entries
from outbox.operator import views, words
from outbox.operator.deciding.discarded_rows import erase_rows
from outbox.operator.settings import DecisionSettings, Given

log = structlog.get_logger()


@subcommand(DecisionSettings)
def app(
    given: Given,
    topic: Annotated[str, option("The real topic of the messages.", show_default=False)],
    key: Annotated[str, option("The message key, as text.", show_default=False)],
    yes: Annotated[bool, option("Do not ask.", "--yes")] = False,
) -> Exit:
    """Erase the messages of a key that wait or are discarded, and name what stays.

    It ends with 2 if something stays, with 3 if something could not be read. The log lines have no key.
    """
    settings = DecisionSettings(**given)
    may_ask(yes=yes, as_json=False)
    configure_logs()
    by = recorded_name(settings.client_properties(), settings.operator)
    search = views.find(settings, key.encode(), (topic,), None, None)
    print_entries([*words.messages(key, search.found), *(Entry(f"not searched: {gap}") for gap in search.unread)])
    if search.rows and (yes or typer.confirm("No consumer will receive its rows. Erase them?")):
        erased = 0
        for source, ids in search.rows.items():
            erased += (count := erase_rows(source, settings.tables[source], topic, key.encode(), ids))
            log.info("Messages erased", by=by, topic=topic, source=source, erased=count)
        search = views.find(settings, key.encode(), (topic,), None, None)
        print_entries([*words.erased(erased, search.found), *words.messages(key, search.found)])
    return Exit.FINDINGS if search.found else Exit.UNPROVABLE if search.has_fault or not settings.tables else Exit.OK
