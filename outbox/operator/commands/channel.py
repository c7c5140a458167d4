"""`outbox channel create`: the internal topics of a channel."""

from dataclasses import replace
from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._kafka.channel import ChannelDescription, create_channel
from outbox._kafka.topic_contract import contract_problems
from outbox._service.exit_codes import warn
from outbox._service.output import Entry, Json, show
from outbox.errors import ConfigurationError, UsageError
from outbox.operator.settings import ContractSettings, Given

NEW_PARTITIONS = 4

app = typer.Typer(help="Create a channel's internal topics.", no_args_is_help=True, callback=lambda: None)


@app.command()
@setting_options(ContractSettings)
def create(
    given: Given,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help=f"Partitions of each topic; {NEW_PARTITIONS} in a new channel."),
    ] = None,
    replication: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each; a new channel has the cluster's default.")
    ] = None,
    tables_only: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--tables-only", help="No half mode: one topic, for the progress of message tables.")
    ] = False,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the topics and commit the initial checkpoints. Topics that exist are not changed."""
    if tables_only and partitions:
        raise UsageError("--partitions are those of half mode. Omit it with --tables-only.")
    settings = ContractSettings(**given)
    made = create_channel(
        settings.client_properties(),
        replace(settings.channel_names(), tables_only=tables_only),
        partitions=partitions or NEW_PARTITIONS,
        replication=replication or -1,
    )
    _refuse_difference(made, "partitions", partitions, made.partitions)
    _refuse_difference(made, "replication", replication, made.half.replication)
    topics = {one.name: one for one in (made.half, made.op, made.verdict, made.check, made.discard)}
    fields = [
        {"topic": one.name, "partitions": one.partitions, "replicas": one.replication, "topic_id": one.id}
        for one in topics.values()
    ]
    entries = [
        Entry(one.name, [f"{one.partitions} partitions, {one.replication} replicas, id {one.id}"])
        for one in topics.values()
    ]
    name = made.channel.name
    show({"channel": name, "topics": fields}, [Entry(f"channel {name}:"), *entries], as_json=as_json)
    for problem in contract_problems(made.channel, topics, settings.contract()):
        warn(f"profile {settings.profile}: {problem}")


def _refuse_difference(made: ChannelDescription, option: str, asked: int | None, found: int) -> None:
    if asked not in {None, found}:
        raise ConfigurationError(
            f"Channel {made.channel.name} exists with {option} {found}, not {asked}; its topics were not changed. "
            f"Leave --{option} out, or change the topics with Kafka's own tools (docs/operations/deploy.md, Kafka)."
        )
