"""`outbox channel resume`: half partitions that were written to before they had a checkpoint go on (R84)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outbox._cli.options import Given
from outbox._cli.setting_options import setting_options
from outbox._cli.table_resume import RECORDS
from outbox._operations.partition_resumption import ChannelResumption, ResumedPartition
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, may_ask, print_entry, print_json, show_records_read
from outbox._settings.declared import ChannelSettings


@setting_options(ChannelSettings)
def resume(
    given: Given,
    not_delivered_to: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="What is not found there was not delivered; repeatable."),
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Records that are read of a real topic at most.")] = RECORDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Commit a first checkpoint of half partitions that were written to and have none, as after a channel grew.

    Real topics are searched for their messages: what is there is not delivered again. Stop the relays before. Ends with
    3 if the real topics do not prove what was delivered.
    """
    may_ask(yes=yes or dry_run, as_json=as_json)
    settings = ChannelSettings(**given)
    case = ChannelResumption(
        settings.client_properties(), settings.channel_names(), records, frozenset(not_delivered_to or ())
    )
    with show_records_read() as passed:
        case.find(passed)
    is_committed = bool(case.partitions) and case.is_provable and not dry_run and _may(case, yes=yes)
    if is_committed:
        case.commit()
    if as_json:
        print_json(_document(case, is_committed=is_committed))
    else:
        _show(case, is_committed=is_committed)
    if not case.is_provable:
        raise SystemExit(Exit.UNPROVABLE)


def _may(case: ChannelResumption, *, yes: bool) -> bool:
    if yes:
        return True
    _show(case, is_committed=False)
    return typer.confirm("Go on?")


def _outcome(case: ChannelResumption, *, is_committed: bool) -> str:
    if is_committed:
        return "resumed"
    if not case.partitions:
        return "nothing to resume"
    return "possible" if case.is_provable else "refused"


def _document(case: ChannelResumption, *, is_committed: bool) -> dict[str, Any]:
    return {
        "channel": case.channel.name,
        "outcome": _outcome(case, is_committed=is_committed),
        "partitions": [
            {
                "partition": one.number,
                "halves": one.halves,
                "halves_found_delivered": one.delivered,
                "why": one.refusal or None,
            }
            for one in case.partitions
        ],
        "not_searched": [{"place": gap.place, "why": gap.why} for gap in case.gaps],
    }


def _show(case: ChannelResumption, *, is_committed: bool) -> None:
    print_entry(
        PlainConsole(),
        f"channel {case.channel.name}: {_outcome(case, is_committed=is_committed)}",
        *(_line(one) for one in case.partitions),
        *(f"not searched: {gap.place}: {gap.why}" for gap in case.gaps),
    )


def _line(one: ResumedPartition) -> str:
    if one.refusal:
        return f"half partition {one.number} cannot be resumed: {one.refusal}"
    return f"half partition {one.number}: {one.delivered} of {one.halves} halves are delivered, a relay gets the others"
