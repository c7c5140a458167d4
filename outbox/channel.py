"""A channel in Kafka: its creation, its verification, and what a process must know of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox.cluster import REQUEST_TIMEOUT, TopicDescription, admin_client, answer, describe_topics
from outbox.contract import channel_problems, topic_settings
from outbox.errors import ChannelError
from outbox.group_offsets import commit_missing
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.names import Channel

SAFE = 3
"""With so many replicas a topic can have `min.insync.replicas=2` and still lose a broker."""


@dataclass(frozen=True, slots=True)
class ChannelDescription:
    """A verified channel.

    Args:
        channel: Its names.
        half: Its half topic.
        op: Its op topic.
        partitions: The common partition count of half, op and discard topic.
    """

    channel: Channel
    half: TopicDescription
    op: TopicDescription
    partitions: int


def verify_channel(admin: AdminClient, channel: Channel, timeout: float = REQUEST_TIMEOUT) -> ChannelDescription:
    """Check that the channel's topics exist and are what the protocol needs.

    Raises:
        ChannelError: A topic is missing or wrong; the message says what to do.
        KafkaUnreachable: The cluster does not answer.
        ConfigurationError: It refuses.
    """
    topics = describe_topics(admin, channel.topics, timeout)
    problems = channel_problems(channel, topics)
    if problems:
        raise ChannelError("; ".join(map(str, problems)))
    half = topics[channel.half_topic]
    return ChannelDescription(channel, half, topics[channel.op_topic], half.partitions)


def create_channel(
    kafka: Mapping[str, str], channel: Channel, *, partitions: int = 4, replication: int = -1
) -> ChannelDescription:
    """Create the channel's topics and commit the initial checkpoint of each partition (R22).

    Topics that exist are left as they are, and so are checkpoints: running it again is safe.

    Args:
        kafka: librdkafka properties, with the rights to create topics and to commit the relay group's offsets.
        channel: The channel.
        partitions: Common partition count of half, op and discard topic; the check topic has as many.
        replication: Replicas of each; -1 for the cluster's default.

    Raises:
        ChannelError: A topic exists and is wrong.
        ConfigurationError: The cluster does not answer, or refuses.
    """
    admin = admin_client(kafka)
    settings = topic_settings(channel)
    safe = {"unclean.leader.election.enable": "false", **({"min.insync.replicas": "2"} if replication >= SAFE else {})}
    new = [
        NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication,
            config={**settings[name], **safe},
        )
        for name in channel.topics
    ]
    for future in admin.create_topics(new, request_timeout=REQUEST_TIMEOUT).values():
        answer(future, "creating topics", absent=KafkaError.TOPIC_ALREADY_EXISTS, admin=admin)
    description = _wait_until_described(admin, channel)
    _commit_initial_checkpoints(kafka, description)
    return description


def _wait_until_described(admin: AdminClient, channel: Channel) -> ChannelDescription:
    """A topic is known to every broker a moment after its creation was acknowledged."""
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while len(describe_topics(admin, channel.topics)) < len(channel.topics) and time.monotonic() < deadline:
        time.sleep(0.1)
    return verify_channel(admin, channel)


def _commit_initial_checkpoints(kafka: Mapping[str, str], description: ChannelDescription) -> None:
    half, op = description.half, description.op
    initial = {
        (topic.name, partition): TopicPartition(topic.name, partition, 0, checkpoint.encode(topic.id, partition))
        for topic, checkpoint in ((half, HalfCheckpoint(0, 0)), (op, OpCheckpoint(0, 0)))
        for partition in range(description.partitions)
    }
    commit_missing(kafka, description.channel.relay_group, initial)
