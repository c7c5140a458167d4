"""`outbox pending`: the unsettled transactions, which are undecided, or decided and not delivered yet."""

from typing import Annotated, Any

from outbox._cli.setting_options import option, subcommand
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, show, show_records_read
from outbox._settings.declared import NO_TABLES
from outbox.operator.settings import OperatorSettings
from outbox.operator.views import overview, parse_duration
from outbox.operator.words import MOST_LISTED, halves, sources


@subcommand(OperatorSettings)
def app(
    given: dict[str, Any],
    service: Annotated[str | None, option("Only transactions of this service.")] = None,
    older_than: Annotated[str, option("Only what is older, such as 90s, 15m, 6h or 2d.")] = "0s",
    limit: Annotated[int, option("Number of transactions listed, the oldest first, and of sums.", min=1)] = MOST_LISTED,
    as_json: Json = False,
) -> Exit:
    """Show unsettled transactions, undecided or decided and not delivered yet, and the rows of message tables.

    It joins no group, and decides nothing.
    """
    youngest, settings = parse_duration(older_than), OperatorSettings(**given)
    with show_records_read():
        state = overview(settings, service, youngest, limit)
    entries = list(sources(state))
    if state.silence is None:
        no_tables = [] if state.tables else [Entry(f"not looked at: rows of table mode ({NO_TABLES})")]
        entries = [*halves(state), *entries, *no_tables]
    if state.tables or state.silence is None:
        show(state, entries, as_json=as_json)
    if state.silence is not None:
        raise state.silence
    is_unread = any(left.is_fault for left in state.not_read) or any(one.is_unread for one in state.tables)
    return Exit.UNPROVABLE if is_unread else Exit.OK
