"""`outbox skip`: pass by one record that halts its half partition."""

from __future__ import annotations

from typing import Annotated

import typer

from outbox._cli.options import Given, SkipSettings, connection
from outbox._cli.setting_options import setting_options
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.skipping import refuse_readable, send_skip
from outbox._security.own_principal import recorded_name
from outbox._service.output import Json, PlainConsole, print_json
from outbox.errors import UsageError
from outbox.protocol.skip import Skip

MAX_REASON = 500
"""Characters of a reason."""

app = typer.Typer(context_settings={"allow_interspersed_args": True}, subcommand_metavar="")


@app.callback(invoke_without_command=True)
@setting_options(SkipSettings)
def skip(
    place: Annotated[str, typer.Argument(help="The partition: half/3 or op/3.")],
    offset: Annotated[int, typer.Option(min=0, help="Offset of the record.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the discard topic with your name.")],
    given: Given,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Skip one unreadable record of the half, op or verdict topic that halts its half partition.

    A half becomes MALFORMED in the discard topic. The decision of an op is asked for again.
    """
    if not 0 < len(reason.strip()) <= MAX_REASON:
        raise UsageError(f"--reason has {len(reason.strip())} characters: give 1 to {MAX_REASON}")
    settings = SkipSettings(**given)
    kafka = connection(settings)
    description = verify_channel(admin_client(kafka), settings.channel_names())
    topic_id, partition = _place(place, description)
    skip = Skip(topic_id, partition, offset, recorded_name(kafka, settings.operator), reason.strip())
    refuse_readable(kafka, description, skip)
    send_skip(kafka, description, skip)
    if as_json:
        print_json({"channel": settings.channel, "place": place, "offset": offset, "operator": skip.operator})
    else:
        PlainConsole().print(f"{place} offset {offset} is skipped when a relay takes the partition over (30 s).")


def _place(text: str, channel: ChannelDescription) -> tuple[str, int]:
    """Return topic id and partition."""
    name, _, number = text.partition("/")
    topics = {"half": channel.half.id, "op": channel.op.id, "verdict": channel.verdict.id}
    if name not in topics or not (number.isascii() and number.isdigit()) or int(number) >= channel.partitions:
        raise UsageError(
            f"{text[:40]!r} is not a valid partition. "
            f"Give half/N, op/N or verdict/N, N from 0 to {channel.partitions - 1}."
        )
    return topics[name], int(number)
