"""The cluster as an administrator asks it: topics and their settings, with errors that say what to do."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from outbox.errors import ConfigurationError, KafkaUnreachable

REQUEST_TIMEOUT = 10.0
"""Seconds for one request to the cluster."""

_UNREACHABLE = {
    KafkaError._TIMED_OUT,  # noqa: SLF001 - librdkafka's own codes carry an underscore
    KafkaError._TRANSPORT,  # noqa: SLF001 - as above
    KafkaError.REQUEST_TIMED_OUT,
}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it.

    Args:
        name: Its name.
        id: Its id, as a UUID; another one after the topic was deleted and made again.
        partitions: How many it has.
        replication: Replicas of the partition that has the fewest.
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


def admin_client(kafka: Mapping[str, Any]) -> AdminClient:
    """An admin client for connection properties.

    Raises:
        ConfigurationError: librdkafka does not know a property, or its value.
    """
    with checked_properties():
        return AdminClient({"socket.timeout.ms": 5_000, **kafka})


@contextmanager
def checked_properties() -> Iterator[None]:
    """The making of a client.

    Raises:
        ConfigurationError: librdkafka does not know a property, or its value, or two do not go together.
    """
    try:
        yield
    except KafkaException as error:
        raise ConfigurationError(f"a property for Kafka is wrong: {error.args[0].str()}") from error
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigurationError(f"a property for Kafka is wrong: {error}") from error


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
        description = answer(future, "describing topics", absent=KafkaError.UNKNOWN_TOPIC_OR_PART)
        if description is not None:
            found[name] = description
    settings = _settings(admin, list(found), timeout)
    return {
        name: TopicDescription(
            name,
            str(uuid.UUID(bytes=_topic_id(description.topic_id))),
            len(description.partitions),
            min(len(partition.replicas) for partition in description.partitions),
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
        resource.name: {name: entry.value for name, entry in answer(future, "reading topic settings").items()}
        for resource, future in answers.items()
    }


def end_offsets(
    admin: AdminClient, partitions: Mapping[str, int], timeout: float = REQUEST_TIMEOUT, *, stable: bool = False
) -> dict[str, tuple[int, ...]]:
    """The end offset (high watermark) of each partition of some topics, with no more rights than DESCRIBE.

    It never fails: a topic of which not every partition answers in time is missing.

    Args:
        admin: Client of the cluster.
        partitions: The topics, with the number of partitions of each.
        timeout: Seconds for the one request.
        stable: The last stable offset instead, up to which a read_committed reader sees everything.
    """
    level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka does not type it
    places = {TopicPartition(name, number): latest for name, count in partitions.items() for number in range(count)}
    answers = admin.list_offsets(places, isolation_level=level, request_timeout=timeout) if places else {}
    offsets = {}
    for place, future in answers.items():
        with suppress(KafkaException):
            offsets[place.topic, place.partition] = int(future.result().offset)
    return {
        name: tuple(offsets[name, number] for number in range(count))
        for name, count in partitions.items()
        if all((name, number) in offsets for number in range(count))
    }


def answer(future: Future[Any], what: str, absent: int | None = None) -> Any:
    """The result of an admin request; None for the one error code that says that the thing is (or is not) there.

    Raises:
        KafkaUnreachable: The cluster does not answer.
        ConfigurationError: It refuses.
    """
    try:
        return future.result()
    except KafkaException as error:
        if absent is not None and error.args[0].code() == absent:
            return None
        raise refused(what, error) from error


def refused(what: str, error: KafkaException) -> ConfigurationError:
    """What Kafka's error means to the user: whether to look at the network, or at the rights."""
    cause: KafkaError = error.args[0]
    if cause.code() in _UNREACHABLE:
        return KafkaUnreachable(
            f"Kafka does not answer ({what}: {cause.str()}): start it, or correct bootstrap.servers, "
            "the network or the credentials"
        )
    advice = "; check the rights of this client" if "AUTHORIZATION" in cause.name() else ""
    return ConfigurationError(f"{what} failed: {cause.name()}: {cause.str()}{advice}")
