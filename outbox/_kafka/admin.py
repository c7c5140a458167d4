"""The cluster as an administrator asks it: topics and their settings, with errors that name the remedy.

Why a client does not reach Kafka is in librdkafka's error events: a request that timed out does not carry it.
"""

import re
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclOperation,
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from outbox._kafka.client_log import logged
from outbox._kafka.forks import creation
from outbox._rules.topic_description import Replicas, TopicDescription
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.names import sibling_topic

_ADVICE = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Grant this client DESCRIBE on the consumer group",
    KafkaError._AUTHENTICATION: "Correct the credentials (sasl.*), or the token endpoint",  # noqa: SLF001 - librdkafka's
    KafkaError._SSL: "Correct ssl.ca.location and the other ssl.* properties, or the port",  # noqa: SLF001 - as above
    KafkaError._RESOLVE: "Correct the host name in bootstrap.servers",  # noqa: SLF001 - as above
    KafkaError._TRANSPORT: "Start Kafka, or correct bootstrap.servers or the network",  # noqa: SLF001 - as above
}
"""What to do, by librdkafka's code; the most specific cause first: a refused login also breaks the connection."""

UNKNOWN_CAUSE = "Start Kafka, or correct bootstrap.servers, the network or the credentials"

NO_ANSWER = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 - librdkafka's own codes carry an underscore
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - as above
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - as above
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 - as above
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
        KafkaError._RESOLVE,  # noqa: SLF001 - as above
        KafkaError._WAIT_COORD,  # noqa: SLF001 - as above
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)
"""Codes of a request without an answer: no broker replied, or the one that did could not reach another in time."""

_KEPT = 50
_STATE = re.compile(r" \(after \d+ms in state [^()]*\)$")


class Causes:
    """Collects the error events of one client.

    The events wait in the client until it is polled, so `explain` polls it.
    """

    def __init__(self) -> None:
        self._errors: deque[KafkaError] = deque(maxlen=_KEPT)
        self._token_failure: KafkaError | None = None

    def properties(self) -> dict[str, Any]:
        return {"error_cb": self._errors.append}

    def forget(self, client: AdminClient | Consumer) -> None:
        """Drop the events so far, before a request whose failure they would not explain.

        The last token failure is kept: librdkafka reports it again only when its text changes.
        """
        client.poll(0)
        self._token_failure = next(filter(_is_token_failure, reversed(self._errors)), self._token_failure)
        self._errors.clear()

    def explain(self, client: AdminClient | Consumer) -> tuple[str, str] | None:
        """Return the cause and what to do about it; None if there was no event. Any thread may call it.

        Args:
            client: The client, which is polled for its events; it must not consume.
        """
        client.poll(0)
        kept = [self._token_failure] if self._token_failure is not None else []
        newest: Mapping[int, str] = {error.code(): error.str() for error in tuple(self._errors) or kept}
        code = next((code for code in _ADVICE if code in newest), None)
        return None if code is None else (_STATE.sub("", newest[code]), _ADVICE[code])


def _is_token_failure(error: KafkaError) -> bool:
    return error.code() == KafkaError._AUTHENTICATION and "token" in error.str()  # noqa: SLF001 - as above


class ExplainingAdmin(AdminClient):
    """An admin client that keeps the causes of failed connections."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.causes = Causes()
        super().__init__({**self.causes.properties(), **properties})


def forget_causes(client: AdminClient) -> None:
    """Drop the events so far of an admin client, before a request."""
    if isinstance(client, ExplainingAdmin):
        client.causes.forget(client)


def cause_of(client: AdminClient | None) -> tuple[str, str] | None:
    """Return why an admin client does not reach Kafka, and what to do about it; None if that is unknown."""
    return client.causes.explain(client) if isinstance(client, ExplainingAdmin) else None


REQUEST_TIMEOUT = 10.0
"""Seconds for one request to the cluster."""

ATTEMPT_SECONDS = 2.0
"""Time for a first answer. A broker that is being stopped takes requests and answers none: another one is asked."""

REFRESH_SECONDS = 1.0
FIRST_ANSWER_SECONDS = 5.0
"""Seconds that a command waits for Kafka's first answer. Without one it goes on with what else answers."""

_FRESH = {"topic.metadata.refresh.interval.ms": 1_000}
"""librdkafka sends admin requests to the broker that the last metadata names. Without a refresh, a client whose broker
died gets no answer for minutes, although the others are up."""

_DESCRIBE = "DESCRIBE"
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka does not type it


def reconnecting(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties for a client that finds a broker again within about a second; librdkafka's limit is 10 s."""
    ours = {} if "reconnect.backoff.ms" in kafka else {"reconnect.backoff.max.ms": 1_000}
    return {**ours, **kafka}


def admin_client(kafka: Mapping[str, Any]) -> AdminClient:
    with checked_properties():
        return ExplainingAdmin(logged({"socket.timeout.ms": 5_000, **_FRESH, **reconnecting(kafka)}))


def refresh_brokers(client: AdminClient | Producer, timeout: float = REFRESH_SECONDS) -> None:
    """Let a client ask for the list of brokers, which librdkafka itself may not do for a minute.

    Until then it may send admin requests to a broker that has left, and makes no connection to one that is back.

    Args:
        timeout: Seconds for the answer; without one nothing has changed.
    """
    with suppress(KafkaException):  # a request without a topic is for all topics; this one is never created by it
        client.list_topics("__consumer_offsets", timeout)


@contextmanager
def checked_properties() -> Iterator[None]:
    """Make a client; no fork happens meanwhile."""
    try:
        with creation():
            yield
    except KafkaException as error:
        if error.args[0].code() == KafkaError.SASL_AUTHENTICATION_FAILED:
            raise KafkaUnreachable(
                f"The token provider in oauth_cb gave no token ({error.args[0].str()}). "
                "Look at its failures in the log, and correct it or what it asks."
            ) from error
        raise ConfigurationError(
            f"a property for Kafka is wrong: {error.args[0].str()}: correct it, see CONFIGURATION.md of librdkafka"
        ) from error
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigurationError(
            f"a property for Kafka is wrong: {error}: correct it, see CONFIGURATION.md of librdkafka"
        ) from error


def describe_topics(
    admin: AdminClient, topics: Sequence[str], timeout: float = REQUEST_TIMEOUT, *, writing: bool = False
) -> dict[str, TopicDescription]:
    """Describe those of the topics that exist.

    Without an answer another broker is asked (R79), and waited for twice as long.

    Args:
        timeout: Seconds after which no other one is asked.
        writing: Whether this client is to write to them: a right that it lacks is then returned, and is no error. Kafka
            does not show whether a topic exists that a client may not describe.
    """
    began, seconds = time.monotonic(), min(ATTEMPT_SECONDS, timeout)
    while True:
        try:
            return _describe(admin, topics, seconds, writing=writing)
        except KafkaUnreachable:
            left = began + timeout - time.monotonic()
            if left <= 0:
                raise
            refresh_brokers(admin)
            seconds = min(2 * seconds, max(left, ATTEMPT_SECONDS))


def _describe(
    admin: AdminClient, topics: Sequence[str], timeout: float, *, writing: bool
) -> dict[str, TopicDescription]:
    """Ask one broker; `timeout` is that of each of two requests."""
    forget_causes(admin)
    asked = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=writing, request_timeout=timeout
    )
    found, lacks = _answers(admin, asked, "describing topic", _DESCRIBE, writing=writing)
    configs = _ask_settings(admin, list(found), timeout)
    settings, lacks_more = _answers(admin, configs, "reading settings of topic", "DESCRIBE_CONFIGS", writing=writing)
    closed = {name: TopicDescription(name, "", 0, 0, {}, right) for name, right in (lacks | lacks_more).items()}
    return closed | {name: _description(name, found[name], of_it) for name, of_it in settings.items()}


def describe_targets(
    admin: AdminClient, topics: Collection[str], timeout: float = REQUEST_TIMEOUT, *, writing: bool = False
) -> dict[str, TopicDescription]:
    """Describe those of the topics that exist, and set `of_channel` for those of a channel.

    A topic is of a channel if its sibling exists, see `sibling_topic`. With `writing`, `lacks` of a topic whose sibling
    this client may not describe is that missing right: a message must not go there before that is known.
    """
    siblings = {name: sibling for name in topics if (sibling := sibling_topic(name))}
    found = describe_topics(admin, [*{*topics, *siblings.values()}], timeout, writing=writing)
    described = {name: found[name] for name in topics if name in found}
    for name in siblings.keys() & described.keys():
        beside = found.get(siblings[name])
        if beside is not None and beside.lacks == _on(_DESCRIBE, beside.name):
            described[name] = replace(described[name], lacks=described[name].lacks or beside.lacks)
        elif beside is not None:
            described[name] = replace(described[name], of_channel=True)
    return described


def _ask_settings(admin: AdminClient, topics: Sequence[str], timeout: float) -> dict[str, Future[Any]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    answers = admin.describe_configs(resources, request_timeout=timeout) if resources else {}
    return {resource.name: future for resource, future in answers.items()}


def _answers(
    admin: AdminClient, futures: Mapping[str, Future[Any]], what: str, right: str, *, writing: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return descriptions of the topics that exist and, by topic, the right that is missing."""
    lacks = {name: _on(right, name) for name, future in futures.items() if _is_forbidden(future)}
    if lacks and not writing:
        raise ConfigurationError(
            f"{what} failed: TOPIC_AUTHORIZATION_FAILED: this client lacks the right {', '.join(lacks.values())}. "
            "Grant it."
        )
    answers = {
        name: answer(future, f"{what} {name}", absent=KafkaError.UNKNOWN_TOPIC_OR_PART, admin=admin)
        for name, future in futures.items()
        if name not in lacks
    }
    return {name: found for name, found in answers.items() if found is not None}, lacks


def _on(right: str, topic: str) -> str:
    return f"{right} on topic {topic}"


def _is_forbidden(future: Future[Any]) -> bool:
    error = future.exception()
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def _description(name: str, topic: Any, settings: Any) -> TopicDescription:
    operations = topic.authorized_operations  # None if they were not asked for
    configuration = {setting: entry.value for setting, entry in settings.items()}
    min_isr = int(configuration["min.insync.replicas"])
    return TopicDescription(
        name,
        str(uuid.UUID(bytes=_topic_id(topic.topic_id))),
        len(topic.partitions),
        min(len(partition.replicas) for partition in topic.partitions),
        configuration,
        "" if operations is None or AclOperation.WRITE in operations else _on("WRITE", name),
        tuple(_replicas(partition, min_isr) for partition in topic.partitions),
    )


def _replicas(partition: Any, min_isr: int) -> Replicas:
    """Return where a partition is; Kafka lowers `min.insync.replicas` to the number of replicas."""
    leader = None if partition.leader is None else partition.leader.id
    return Replicas(leader, frozenset(node.id for node in partition.isr), min(min_isr, len(partition.replicas)))


def _topic_id(topic_id: Any) -> bytes:
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return int(high).to_bytes(8, "big", signed=True) + int(low).to_bytes(8, "big", signed=True)


def broker_setting(admin: AdminClient, name: str, timeout: float = REQUEST_TIMEOUT) -> str | None:
    """Return a setting of the broker that controls the cluster; None if this client may not read it."""
    cluster = answer(admin.describe_cluster(request_timeout=timeout), "describing the cluster", admin=admin)
    resource = ConfigResource(ResourceType.BROKER, str(cluster.controller.id))
    (future,) = admin.describe_configs([resource], request_timeout=timeout).values()
    error = future.exception()
    if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        return None
    entry = answer(future, "reading broker settings", admin=admin).get(name)
    return None if entry is None else entry.value


def end_offsets(
    admin: AdminClient, partitions: Mapping[str, int], timeout: float = REQUEST_TIMEOUT, *, stable: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return the end offset (high watermark) of each partition of some topics, with no more rights than DESCRIBE.

    It never fails: a topic of which not every partition answers in time is missing.

    Args:
        partitions: The topics, with the number of partitions of each.
        stable: The last stable offset instead, up to which a read_committed reader sees everything.
    """
    return _of_topics(partitions, _offsets(admin, _places(partitions), _LATEST, timeout, stable=stable))


def start_offsets(
    admin: AdminClient, partitions: Mapping[str, int], timeout: float = REQUEST_TIMEOUT
) -> dict[str, tuple[int, ...]]:
    """Return the first offset (log start) that each partition of some topics still has. As `end_offsets()`."""
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # confluent-kafka does not type it
    return _of_topics(partitions, _offsets(admin, _places(partitions), earliest, timeout, stable=False))


def end_offset(
    admin: AdminClient, topic: str, partition: int, timeout: float = REQUEST_TIMEOUT, *, stable: bool = False
) -> int | None:
    """Return the end offset of one partition; None if it does not answer in time. As `end_offsets()`."""
    place = (topic, partition)
    return _offsets(admin, [place], _LATEST, timeout, stable=stable).get(place)


def takes_records(admin: AdminClient, topic: TopicDescription, timeout: float = REQUEST_TIMEOUT) -> bool:
    """Return whether a partition of a topic takes a record now: its leader answers, and enough replicas are in sync."""
    places = [(topic.name, number) for number, is_writable in enumerate(topic.writable) if is_writable]
    return bool(_offsets(admin, places, _LATEST, timeout, stable=False))


def _places(partitions: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(name, number) for name, count in partitions.items() for number in range(count)]


def _of_topics(partitions: Mapping[str, int], offsets: Mapping[tuple[str, int], int]) -> dict[str, tuple[int, ...]]:
    """Offsets by topic; a topic of which not every partition answered is left out."""
    return {
        name: tuple(offsets[name, number] for number in range(count))
        for name, count in partitions.items()
        if all((name, number) in offsets for number in range(count))
    }


def _offsets(
    admin: AdminClient, places: Collection[tuple[str, int]], which: OffsetSpec, timeout: float, *, stable: bool
) -> dict[tuple[str, int], int]:
    """One offset of each of those partitions that answer in time; an offset below 0 is no answer."""
    level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
    found = _listed(admin, places, which, timeout, level)
    return {place: int(info.offset) for place, info in found if info.offset >= 0}


def newest_records(
    admin: AdminClient, places: Collection[tuple[str, int]], timeout: float = REQUEST_TIMEOUT
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return offset and append time (ms) of the newest record of each partition that answers in time."""
    newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]  # confluent-kafka does not type it
    found = _listed(admin, places, newest, timeout, IsolationLevel.READ_UNCOMMITTED)
    return {place: (int(info.offset), int(info.timestamp)) for place, info in found}


def _listed(
    admin: AdminClient,
    places: Collection[tuple[str, int]],
    which: OffsetSpec,
    timeout: float,
    level: IsolationLevel,
) -> Iterator[tuple[tuple[str, int], Any]]:
    """Yield the answers of those partitions that answer in time."""
    asked = {TopicPartition(*place): which for place in places}
    answers = admin.list_offsets(asked, isolation_level=level, request_timeout=timeout) if asked else {}
    for place, future in answers.items():
        with suppress(KafkaException):
            yield (place.topic, place.partition), future.result()


def answer(future: Future[Any], what: str, absent: int | None = None, admin: AdminClient | None = None) -> Any:
    """Return the result of an admin request; None for the error code of a thing that is (or is not) there."""
    try:
        return future.result()
    except KafkaException as error:
        if absent is not None and error.args[0].code() == absent:
            return None
        raise refused(what, error, cause_of(admin)) from error


def refused(what: str, error: KafkaException, why: tuple[str, str] | None = None) -> ConfigurationError:
    """Return what a Kafka error means, network, login or rights; `why` is the cause that the client reported."""
    cause: KafkaError = error.args[0]
    if cause.code() in NO_ANSWER:
        reason, advice = why or (cause.str(), UNKNOWN_CAUSE)
        return KafkaUnreachable(f"Kafka does not answer ({what}: {reason}). {advice}.")
    advice = "; check the rights of this client" if "AUTHORIZATION" in cause.name() else ""
    return ConfigurationError(f"{what} failed: {cause.name()}: {cause.str()}{advice}")
