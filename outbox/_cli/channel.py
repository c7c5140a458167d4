"""`outbox channel`: create and verify the internal topics."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from outbox._cli.options import CHANNEL_DEFAULT, BootstrapServers, ChannelName, connection
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import ChannelDescription, create_channel, verify_channel
from outbox._service.exit_codes import guarded
from outbox._service.output import Json, PlainConsole, print_json
from outbox.errors import ConfigurationError
from outbox.protocol.names import Channel

NEW_PARTITIONS = 4

app = typer.Typer(help="Create and verify a channel's internal topics.", no_args_is_help=True)


@app.command()
def create(
    bootstrap_servers: BootstrapServers = "",
    channel: ChannelName = CHANNEL_DEFAULT,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help=f"Partitions of half, op and discard topic; {NEW_PARTITIONS} in a new channel."),
    ] = None,
    replication: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each; a new channel has the cluster's default.")
    ] = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the topics and commit the initial checkpoints. Running it again changes nothing."""

    def run() -> None:
        kafka = connection(bootstrap_servers)
        made = create_channel(
            kafka, Channel(channel), partitions=partitions or NEW_PARTITIONS, replication=replication or -1
        )
        _refuse_difference(made, "partitions", partitions, made.partitions)
        _refuse_difference(made, "replication", replication, made.half.replication)
        _show(made, as_json=as_json)

    guarded(run)


def _refuse_difference(made: ChannelDescription, option: str, asked: int | None, found: int) -> None:
    """Refuse an option that an existing channel contradicts.

    Raises:
        ConfigurationError: The channel existed with another number.
    """
    if asked not in {None, found}:
        raise ConfigurationError(
            f"Channel {made.channel.name} exists with {option} {found}, not {asked}; its topics were not changed. "
            f"Leave --{option} out, or change the topics with Kafka's own tools (docs/operations/deploy.md, Kafka)."
        )


@app.command()
def verify(
    bootstrap_servers: BootstrapServers = "",
    channel: ChannelName = CHANNEL_DEFAULT,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check that the topics are what the protocol needs."""

    def run() -> None:
        _show(verify_channel(admin_client(connection(bootstrap_servers)), Channel(channel)), as_json=as_json)

    guarded(run)


def _show(description: ChannelDescription, *, as_json: bool) -> None:
    topics = (description.half, description.op)
    if as_json:
        fields = [
            {"topic": one.name, "partitions": one.partitions, "replicas": one.replication, "topic_id": one.id}
            for one in topics
        ]
        print_json({"channel": description.channel.name, "topics": fields})
        return
    table = Table("topic", "partitions", "replicas", "topic id", title=f"channel {description.channel.name}")
    for topic in topics:
        table.add_row(topic.name, str(topic.partitions), str(topic.replication), topic.id)
    PlainConsole().print(table)
