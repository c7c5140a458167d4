"""`outbox channel create`: the internal topics of a channel."""

from dataclasses import replace
from typing import Annotated

import typer

from outbox._cli.setting_options import option, setting_options
from outbox._kafka.channel import ChannelDescription, create_channel
from outbox._kafka.topic_contract import contract_problems
from outbox._service.exit_codes import warn
from outbox._service.output import Entry, Json, show
from outbox.errors import ConfigurationError, UsageError
from outbox.operator import words
from outbox.operator.settings import ContractSettings, Given

NEW_PARTITIONS = 4
app = typer.Typer(help="Create a channel's internal topics.", no_args_is_help=True, callback=lambda: None)


@app.command()
@setting_options(ContractSettings)
def create(
    given: Given,
    partitions: Annotated[int | None, option(f"Partitions of each topic, at first {NEW_PARTITIONS}.", min=1)] = None,
    replication: Annotated[int | None, option("Replicas of each, at first the cluster's default.", min=1)] = None,
    tables_only: Annotated[bool, option("No half mode: one topic, for progress of tables.", "--tables-only")] = False,
    as_json: Json = False,
) -> None:
    """Create the topics and commit the initial checkpoints. Topics that exist are not changed."""
    if tables_only and partitions:
        raise UsageError("--partitions are those of half mode. Omit it with --tables-only.")
    settings = ContractSettings(**given)
    kafka, channel = settings.client_properties(), replace(settings.channel_names(), tables_only=tables_only)
    made = create_channel(kafka, channel, partitions=partitions or NEW_PARTITIONS, replication=replication or -1)
    _refuse_difference(made, "partitions", partitions, made.partitions)
    _refuse_difference(made, "replication", replication, made.half.replication)
    topics = {one.name: one for one in (made.half, made.op, made.verdict, made.check, made.discard)}
    fields = [
        {"topic": one.name, "partitions": one.partitions, "replicas": one.replication, "topic_id": one.id}
        for one in topics.values()
    ]
    entries = (Entry(f"channel {channel.name}:"), *map(words.fields, fields))
    show({"channel": channel.name, "topics": fields}, entries, as_json=as_json)
    for problem in contract_problems(made.channel, topics, settings.contract()):
        warn(f"profile {settings.profile}: {problem}")


def _refuse_difference(made: ChannelDescription, option: str, asked: int | None, found: int) -> None:
    if asked not in {None, found}:
        why = f"Channel {made.channel.name} exists with {option} {found}, not {asked}; its topics were not changed."
        way = f"Leave --{option} out, or change the topics with Kafka's own tools (docs/operations/deploy.md, Kafka)."
        raise ConfigurationError(f"{why} {way}")
