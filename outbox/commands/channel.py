"""`outbox channel`: create and verify the internal topics."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from outbox.channel import ChannelDescription, create_channel, verify_channel
from outbox.cluster import admin_client
from outbox.commands.options import CHANNEL_DEFAULT, BootstrapServers, ChannelName, connection
from outbox.protocol.names import Channel
from outbox.service.exits import guarded
from outbox.service.output import Json, PlainConsole, print_json

app = typer.Typer(help="Create and verify a channel's internal topics.", no_args_is_help=True)


@app.command()
def create(
    bootstrap_servers: BootstrapServers = "",
    channel: ChannelName = CHANNEL_DEFAULT,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of half, op and discard topic.")] = 4,
    replication: Annotated[int, typer.Option(help="Replicas of each; -1: the cluster's default.")] = -1,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the topics and commit the initial checkpoints. Running it again changes nothing."""

    def run() -> None:
        kafka = connection(bootstrap_servers)
        made = create_channel(kafka, Channel(channel), partitions=partitions, replication=replication)
        _show(made, as_json=as_json)

    guarded(run)


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
