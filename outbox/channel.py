"""A channel in Kafka: its creation, its verification, and what a process must know of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox.errors import ChannelError, ConfigurationError, KafkaUnreachable
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.names import Channel

REQUEST_TIMEOUT = 10.0
"""Seconds for one request to the cluster."""

GROUP_TIMEOUT = 30.0
"""Seconds for a request to a group's coordinator; a new cluster makes its offsets topic first."""

_RETENTION_MS = 14 * 24 * 3600 * 1000
_ENVELOPE_BYTES = 4_194_304
"""What a record with an envelope may have: a half of Kafka's default size, in base64, with room to spare (R23)."""

_COMMON = {"message.timestamp.type": "LogAppendTime"}
_DELETE = {**_COMMON, "cleanup.policy": "delete", "retention.ms": str(_RETENTION_MS)}
_COMPACT = {**_COMMON, "cleanup.policy": "compact"}
_REQUIRED = ("cleanup.policy", "message.timestamp.type")
_ENVELOPE = {"max.message.bytes": str(_ENVELOPE_BYTES)}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it.

    Args:
        name: Its name.
        id: Its id, as a UUID; another one after the topic was deleted and made again.
        partitions: How many it has.
        replication: Replicas of its first partition.
        settings: Its configuration.
    """

    name: str
    id: str
    partitions: int
    replication: int
    settings: Mapping[str, str]

    @property
    def max_message_bytes(self) -> int:
        """The largest record that the topic takes."""
        return int(self.settings["max.message.bytes"])


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


def admin_client(kafka: Mapping[str, str]) -> AdminClient:
    """An admin client for connection properties.

    Raises:
        ConfigurationError: librdkafka does not know a property, or its value.
    """
    try:
        return AdminClient({"socket.timeout.ms": 5_000, **kafka})
    except KafkaException as error:
        raise ConfigurationError(f"a property for Kafka is wrong: {error.args[0].str()}") from error


def describe_topics(
    admin: AdminClient, topics: Sequence[str], timeout: float = REQUEST_TIMEOUT
) -> dict[str, TopicDescription]:
    """Describe those of the topics that exist.

    Args:
        admin: Client of the cluster.
        topics: Their names.
        timeout: Seconds for each of two requests.

    Raises:
        KafkaUnreachable: The cluster does not answer.
        ConfigurationError: It refuses.
    """
    found = {}
    for name, future in admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout).items():
        description = _answer(future, "describing topics", absent=KafkaError.UNKNOWN_TOPIC_OR_PART)
        if description is not None:
            found[name] = description
    settings = _settings(admin, list(found), timeout)
    return {
        name: TopicDescription(
            name,
            str(uuid.UUID(bytes=_topic_id(description.topic_id))),
            len(description.partitions),
            len(description.partitions[0].replicas),
            settings[name],
        )
        for name, description in found.items()
    }


def _topic_id(topic_id: Any) -> bytes:
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return int(high).to_bytes(8, "big", signed=True) + int(low).to_bytes(8, "big", signed=True)


def _settings(admin: AdminClient, topics: Sequence[str], timeout: float) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    answers = admin.describe_configs(resources, request_timeout=timeout)
    return {
        resource.name: {name: entry.value for name, entry in _answer(future, "reading topic settings").items()}
        for resource, future in answers.items()
    }


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
        raise ChannelError("; ".join(problems))
    half = topics[channel.half_topic]
    return ChannelDescription(channel, half, topics[channel.op_topic], half.partitions)


def channel_problems(channel: Channel, topics: Mapping[str, TopicDescription]) -> list[str]:
    """What is wrong with a channel's topics, one sentence each, with what to do."""
    missing = [name for name in channel.topics if name not in topics]
    if missing:
        fix = f"run `outbox channel create --channel {channel.name}`"
        return [f"topic {', '.join(missing)} of channel {channel.name!r} does not exist: {fix}"]
    problems = [
        f"topic {name} has {topics[name].partitions} partitions and {channel.half_topic} has "
        f"{topics[channel.half_topic].partitions}: they must have the same number"
        for name in (channel.op_topic, channel.discard_topic)
        if topics[name].partitions != topics[channel.half_topic].partitions
    ]
    for name, settings in _topic_settings(channel).items():
        problems += [
            f"topic {name} has {setting}={topics[name].settings.get(setting)}: set it to {settings[setting]}"
            for setting in _REQUIRED
            if topics[name].settings.get(setting) != settings[setting]
        ]
    return problems + _size_problems(channel, topics)


def _topic_settings(channel: Channel) -> dict[str, dict[str, str]]:
    return {
        channel.half_topic: _DELETE,
        channel.op_topic: _DELETE,
        channel.check_topic: {**_DELETE, **_ENVELOPE},
        channel.discard_topic: {**_COMPACT, **_ENVELOPE},
    }


def _size_problems(channel: Channel, topics: Mapping[str, TopicDescription]) -> list[str]:
    """A half that fits into the half topic must fit into an envelope (R23)."""
    least = 2 * topics[channel.half_topic].max_message_bytes
    return [
        f"topic {name} has max.message.bytes={topics[name].max_message_bytes}: set it to {least} or more"
        for name in (channel.check_topic, channel.discard_topic)
        if topics[name].max_message_bytes < least
    ]


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
    settings = _topic_settings(channel)
    new = [
        NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication,
            config=settings[name],
        )
        for name in channel.topics
    ]
    for future in admin.create_topics(new, request_timeout=REQUEST_TIMEOUT).values():
        _answer(future, "creating topics", absent=KafkaError.TOPIC_ALREADY_EXISTS)
    description = _wait_until_described(admin, channel)
    _commit_initial_checkpoints(kafka, description)
    return description


def _wait_until_described(admin: AdminClient, channel: Channel) -> ChannelDescription:
    """A topic is known to every broker a moment after its creation was acknowledged."""
    for _ in range(50):
        if len(describe_topics(admin, channel.topics)) == len(channel.topics):
            break
    return verify_channel(admin, channel)


def _commit_initial_checkpoints(kafka: Mapping[str, str], description: ChannelDescription) -> None:
    half, op = description.half, description.op
    initial = {
        (topic.name, partition): TopicPartition(topic.name, partition, 0, checkpoint.encode(topic.id))
        for topic, checkpoint in ((half, HalfCheckpoint(0, 0)), (op, OpCheckpoint(0, 0)))
        for partition in range(description.partitions)
    }
    with _group_member(kafka, description.channel.relay_group) as consumer:
        committed = _committed(consumer, list(initial))
        missing = [initial[place] for place in initial if place not in committed]
        if missing:
            _commit(consumer, missing)


def committed_offsets(
    kafka: Mapping[str, str], group: str, places: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Committed offsets of a group by (topic, partition); places without one are left out.

    Offsets of open transactions are waited for (R18).

    Raises:
        ConfigurationError: The cluster does not answer, or refuses.
    """
    with _group_member(kafka, group) as consumer:
        return _committed(consumer, places)


@contextmanager
def _group_member(kafka: Mapping[str, str], group: str) -> Iterator[Consumer]:
    """A consumer that joins no generation; unlike the admin client's calls it waits for a coordinator to be made."""
    consumer = Consumer({**kafka, "group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"})
    try:
        yield consumer
    finally:
        consumer.close()


def _committed(consumer: Consumer, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    wanted = [TopicPartition(*place) for place in places]
    answers = _coordinated("reading committed offsets", lambda: consumer.committed(wanted, GROUP_TIMEOUT))
    return {(answer.topic, answer.partition): answer.offset for answer in answers if answer.offset >= 0}


def _commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    _coordinated("committing the initial checkpoint", lambda: consumer.commit(offsets=offsets, asynchronous=False))


def _coordinated(what: str, request: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    """Ask a group's coordinator, again while it is being made or moves."""
    deadline = time.monotonic() + GROUP_TIMEOUT
    while True:
        try:
            answers = request()
            error = next((answer.error for answer in answers if answer.error is not None), None)
        except KafkaException as failure:
            error = failure.args[0]
        if error is None:
            return answers
        if error.code() not in _MOVING or time.monotonic() > deadline:
            raise _refused(what, KafkaException(error))
        time.sleep(0.1)


def _answer(future: Future[Any], what: str, absent: int | None = None) -> Any:
    """The result of an admin request; None for the one error code that says that the thing is (or is not) there."""
    try:
        return future.result()
    except KafkaException as error:
        if absent is not None and error.args[0].code() == absent:
            return None
        raise _refused(what, error) from error


_MOVING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}

_UNREACHABLE = {
    KafkaError._TIMED_OUT,  # noqa: SLF001 - librdkafka's own codes carry an underscore
    KafkaError._TRANSPORT,  # noqa: SLF001 - as above
    KafkaError.REQUEST_TIMED_OUT,
}


def _refused(what: str, error: KafkaException) -> ConfigurationError:
    cause: KafkaError = error.args[0]
    if cause.code() in _UNREACHABLE:
        return KafkaUnreachable(
            f"Kafka does not answer ({what}: {cause.str()}): start it, or correct bootstrap.servers, "
            "the network or the credentials"
        )
    return ConfigurationError(f"{what} failed: {cause.name()}: {cause.str()}; check the rights of this client")
