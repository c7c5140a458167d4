"""`outbox pending`: the unsettled transactions, which are undecided, or decided and not delivered yet."""

from typing import Annotated, Any

import typer

from outbox._cli.setting_options import setting_options
from outbox._service.exit_codes import Exit
from outbox._service.output import Entry, Json, show, show_records_read
from outbox._settings.declared import NO_TABLES
from outbox.operator.context import ONE_COMMAND, missing_services, parse_duration
from outbox.operator.settings import OperatorSettings
from outbox.operator.views import overview
from outbox.operator.words import MOST_LISTED, halves, sources

app = typer.Typer(help="Show unsettled transactions: undecided, or decided and not delivered yet.", **ONE_COMMAND)


@app.callback(invoke_without_command=True)
@setting_options(OperatorSettings)
def pending(
    given: dict[str, Any],
    service: Annotated[str | None, typer.Option(help="Only transactions of this service.")] = None,
    older_than: Annotated[str, typer.Option(help="Only what is older, such as 90s, 15m, 6h or 2d.")] = "0s",
    limit: Annotated[
        int, typer.Option(min=1, help="Number of transactions listed, the oldest first, and of sums.")
    ] = MOST_LISTED,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """List unsettled transactions and the rows of message tables. It joins no group, and decides nothing."""
    youngest, settings = parse_duration(older_than), OperatorSettings(**given)
    with show_records_read() as passed:
        state, silence = overview(settings, service, youngest, limit, passed=passed)
    entries = list(sources(state))
    if silence is None:
        missing = missing_services(settings.channel_names(), state.members, halves=bool(state.sums))
        no_tables = [] if state.tables else [Entry(f"not looked at: rows of table mode ({NO_TABLES})")]
        entries = [*halves(state), *map(Entry, missing), *entries, *no_tables]
    if state.tables or silence is None:
        show(state, entries, as_json=as_json)
    if silence is not None:
        raise silence
    if any(left.is_fault for left in state.not_read) or any(one.is_unread for one in state.tables):
        raise SystemExit(Exit.UNPROVABLE)
