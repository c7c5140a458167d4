"""`outbox table resume`: let a halted table source go on, after an operator has decided on delivered rows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outbox._cli.options import Given, TableCommandSettings
from outbox._cli.setting_options import setting_options
from outbox._operations.source_resumption import Resumption, Rows, Source
from outbox._service.exit_codes import Exit
from outbox._service.output import Json, PlainConsole, may_ask, print_entry, print_json, show_records_read
from outbox.errors import UsageError

RECORDS = 1_000_000

_UNPROVED = (
    "the real topics do not prove which rows were delivered; --not-delivered-to TOPIC takes your word for one, "
    "--deliver-again delivers all rows"
)


@setting_options(TableCommandSettings)
def resume(
    given: Given,
    source: Annotated[str, typer.Option(help="Name of the table source in the setting tables.")],
    skip_delivered: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--skip-delivered", help="Search the real topics, and delete the rows that are there.")
    ] = False,
    deliver_again: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--deliver-again", help="Deliver all rows; consumers may get messages twice.")
    ] = False,
    not_delivered_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC", help="With --skip-delivered: rows that are not found there were not delivered; repeatable."
        ),
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Records that are read of a real topic at most.")] = RECORDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,  # noqa: FBT002 - a flag
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Set the numbers of a halted table source, so that a relay serves it again within seconds.

    Ends with 2 if it refuses, and with 3 if the real topics do not prove which rows were delivered.
    """
    may_ask(yes=yes or dry_run, as_json=as_json)
    if skip_delivered and deliver_again:
        raise UsageError("give either --skip-delivered or --deliver-again")
    rows = Rows.SKIP_DELIVERED if skip_delivered else Rows.DELIVER_AGAIN if deliver_again else None
    case = _case(TableCommandSettings(**given), source, rows, records)
    case.trusted = frozenset(not_delivered_to or ())
    with show_records_read() as passed:
        case.find(passed)
    if _outcome(case) == "possible" and not dry_run and _may(case, yes=yes):
        case.resume()
    if as_json:
        print_json(_document(case))
    else:
        _show(case)
    if case.gaps:
        raise SystemExit(Exit.UNPROVABLE)
    if _outcome(case) == "refused":
        raise SystemExit(Exit.FINDINGS)


def _case(settings: TableCommandSettings, source: str, rows: Rows | None, records: int) -> Resumption:
    table = settings.tables.get(source)
    if table is None:
        known = ", ".join(settings.tables) or "none"
        raise UsageError(f"No table source {source!r} is configured (there are: {known}). Name it in OUTBOX_CONFIG.")
    where = Source(source, table.message_names(), table.connection_string())
    return Resumption(where, settings.client_properties(), settings.channel_names(), rows, records)


def _may(case: Resumption, *, yes: bool) -> bool:
    if yes:
        return True
    _show(case)
    return typer.confirm("Go on?")


def _outcome(case: Resumption) -> str:
    if case.deleted is not None:
        return "resumed"
    if not case.repair.halted:
        return "not halted"
    return "refused" if case.repair.refusal or case.gaps or case.rows is None else "possible"


def _why(case: Resumption) -> str:
    """Return why it is refused; empty if it is not."""
    if case.repair.refusal or not case.repair.halted:
        return case.repair.refusal
    if case.gaps:
        return _UNPROVED
    return "" if case.rows else "decide on the rows: --skip-delivered or --deliver-again"


def _document(case: Resumption) -> dict[str, Any]:
    return {
        "source": case.source.name,
        "outcome": _outcome(case),
        "halted": case.repair.halted or None,
        "why": _why(case) or None,
        "batch": case.progress.batch,
        "delivered": case.progress.delivered,
        "kafka_batch": case.committed.batch if case.committed else None,
        "new_batch": case.repair.batch if case.repair.halted and not case.repair.refusal else None,
        "rows": case.waiting,
        "in_delivery": case.in_delivery,
        "rows_found_delivered": len(case.delivered),
        "rows_deleted": case.deleted,
        "warning": case.repair.warning or None,
        "not_searched": [{"place": gap.place, "why": gap.why} for gap in case.gaps],
    }


def _show(case: Resumption) -> None:
    kafka = case.committed.batch if case.committed else "none"
    numbers = f"newest batch {case.progress.batch}, delivered {case.progress.delivered}, batch in Kafka {kafka}"
    print_entry(
        PlainConsole(),
        f"table source {case.source.name}: {_outcome(case)}",
        numbers,
        f"{case.waiting} rows, {case.in_delivery} of them of the newest batch",
        case.repair.halted,
        _why(case),
        *_consequences(case),
        *(f"not searched: {gap.place}: {gap.why}" for gap in case.gaps),
    )


def _consequences(case: Resumption) -> list[str]:
    if not case.repair.halted or _why(case):
        return []
    verb, left = "will be" if case.deleted is None else "were", case.waiting - len(case.delivered)
    is_skipping = case.rows is Rows.SKIP_DELIVERED
    deleted = f"{len(case.delivered)} rows, which are on their real topics, {verb} deleted"
    twice = "; those that were delivered before are delivered twice"
    return [
        deleted if is_skipping else "",
        f"the numbers {verb} set to {case.repair.batch}; a relay delivers {left} rows{'' if is_skipping else twice}",
        case.repair.warning,
    ]
