"""A channel in Kafka: its creation, its verification, and what a process must know of it."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.admin import REQUEST_TIMEOUT, admin_client, answer, describe_topics, end_offset
from outbox._kafka.groups import commit_missing, missing_offsets
from outbox._kafka.topic_contract import PROGRESS_PARTITIONS, channel_problems, topic_settings
from outbox._rules.topic_description import TopicDescription
from outbox.errors import ChannelError, KafkaUnreachable
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.names import Channel

SAFE = 3
"""With so many replicas a topic can have `min.insync.replicas=2` and still lose a broker."""


@dataclass(frozen=True, slots=True)
class ChannelDescription:
    """A verified channel.

    One of message tables only has no half partition, and its one topic in place of each.

    Args:
        partitions: The common partition count of half, op, verdict and discard topic.
    """

    channel: Channel
    half: TopicDescription
    op: TopicDescription
    verdict: TopicDescription
    check: TopicDescription
    discard: TopicDescription
    partitions: int

    def numbers(self) -> range:
        return range(self.partitions)


def as_created(admin: AdminClient, channel: Channel, timeout: float = REQUEST_TIMEOUT) -> Channel:
    """Return a channel as what it was created: of message tables only if the topic for their progress is its only one.

    Neither topics of half mode that are gone nor a topic that a stranger's look has created make such a channel of it.
    """
    names = [channel.progress_topic, *replace(channel, tables_only=False).topics]
    found = describe_topics(admin, names, timeout, writing=True).values()
    there = {topic.name for topic in found if topic.id}  # no id: the right to see it is missing
    return replace(channel, tables_only=there == {channel.progress_topic})


def find_channel(admin: AdminClient, channel: Channel, timeout: float = REQUEST_TIMEOUT) -> ChannelDescription:
    """Check a channel of either kind, for who looks at what there is."""
    return verify_channel(admin, as_created(admin, channel, timeout), timeout)


def verify_channel(admin: AdminClient, channel: Channel, timeout: float = REQUEST_TIMEOUT) -> ChannelDescription:
    """Check that the channel's topics exist and are what the protocol needs."""
    topics = describe_topics(admin, channel.topics, timeout)
    problems = channel_problems(channel, topics)
    if problems:
        raise ChannelError("; ".join(map(str, problems)))
    if channel.tables_only:
        one = topics[channel.progress_topic]
        return ChannelDescription(channel, one, one, one, one, one, 0)
    half, op, verdict = topics[channel.half_topic], topics[channel.op_topic], topics[channel.verdict_topic]
    check, discard = topics[channel.check_topic], topics[channel.discard_topic]
    return ChannelDescription(channel, half, op, verdict, check, discard, half.partitions)


def create_channel(
    kafka: Mapping[str, str], channel: Channel, *, partitions: int = 4, replication: int = -1
) -> ChannelDescription:
    """Create the channel's topics and commit the initial checkpoint of each partition (R22).

    Topics and checkpoints that exist are left unchanged: running it again is safe. A topic that a channel lacks gets as
    many partitions and replicas as the half topic.

    Args:
        partitions: Common partition count of all topics of a new channel with half mode.
        replication: Replicas of each in a new channel; -1 for the cluster's default.

    Raises:
        ChannelError: It exists as one of the other kind: progress of its table sources would be looked for elsewhere.
    """
    admin = admin_client(kafka)
    settings = topic_settings(channel)
    if others := describe_topics(admin, replace(channel, tables_only=not channel.tables_only).topics):
        raise ChannelError(
            f"channel {channel.name} has {', '.join(sorted(others))}, and channels with and without half mode do not "
            "become each other: nothing was created. Choose another name with --channel"
        )
    if channel.tables_only:
        partitions = PROGRESS_PARTITIONS
    half = describe_topics(admin, channel.topics).get(channel.topics[-1])
    if half is not None:
        partitions, replication = half.partitions, half.replication
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
    created = _create_topics(admin, new)
    description = _wait_until_described(admin, channel)
    _commit_initial_checkpoints(kafka, admin, description, created)
    return description


def _create_topics(admin: AdminClient, new: Sequence[NewTopic]) -> set[str]:
    """Create topics, and return the names of those that did not exist."""
    created = set()
    for name, future in admin.create_topics(list(new), request_timeout=REQUEST_TIMEOUT).items():
        answer(future, "creating topics", absent=KafkaError.TOPIC_ALREADY_EXISTS, admin=admin)
        if future.exception() is None:
            created.add(name)
    return created


def _wait_until_described(admin: AdminClient, channel: Channel) -> ChannelDescription:
    """Return a topic is known to every broker a moment after its creation was acknowledged."""
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while len(describe_topics(admin, channel.topics)) < len(channel.topics) and time.monotonic() < deadline:
        time.sleep(0.1)
    return verify_channel(admin, channel)


def _commit_initial_checkpoints(
    kafka: Mapping[str, str], admin: AdminClient, description: ChannelDescription, created: Collection[str]
) -> None:
    """Commit checkpoints where there are none and none can have been lost (R22)."""
    half, op = description.half, description.op
    group = description.channel.relay_group
    initial = {
        (topic.name, partition): TopicPartition(topic.name, partition, 0, checkpoint.encode(topic.id, partition))
        for topic, checkpoint in ((half, HalfCheckpoint(0, 0)), (op, OpCheckpoint(0, 0)))
        for partition in description.numbers()
    }
    missing = missing_offsets(kafka, group, list(initial))
    new = {place for place in missing if _is_new(admin, place, created)}
    if new:
        commit_missing(kafka, group, {place: initial[place] for place in new})
    if used := sorted(missing - new):
        raise ChannelError(_lost_checkpoints(group, used))


def _is_new(admin: AdminClient, place: tuple[str, int], created: Collection[str]) -> bool:
    """Return whether nothing was ever settled in a partition.

    Args:
        created: Topics that this call created. Applications may have written to them since.
    """
    if place[0] in created:
        return True
    end = end_offset(admin, *place)
    if end is None:
        raise KafkaUnreachable(f"{place[0]}/{place[1]} does not answer: run the command again")
    return end == 0


def _lost_checkpoints(group: str, used: Sequence[tuple[str, int]]) -> str:
    places = ", ".join(f"{topic}/{partition}" for topic, partition in used)
    return (
        f"{places}: group {group} has no checkpoint, although records were written there. "
        "Kafka deletes the offsets of a group that has had no member for offsets.retention.minutes. "
        "Nothing was changed there: an initial checkpoint would deliver every message again that the half topic still "
        "has. `outbox resume` finds out what was delivered; see docs/operations/recovery.md, 'Lost checkpoints'"
    )
