"""Consumer groups, without joining them: their committed offsets, read and written, and who serves a channel."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import FIRST_ANSWER_SECONDS, Causes, checked_properties, refused
from outbox._kafka.client_log import logged
from outbox.errors import ConfigurationError
from outbox.protocol.names import Channel

GROUP_TIMEOUT = 30.0
"""Seconds for a request to a group's coordinator; a new cluster makes its offsets topic first."""

ANSWER_SECONDS = 5.0
"""Seconds until a request without an answer is looked into, and repeated."""

MEMBERS_SECONDS = 10.0
"""Time for members to leave: a relay that waited for its channel joins, and ends, before this has checkpoints."""

_MOVING = {
    KafkaError._TIMED_OUT,  # noqa: SLF001 - librdkafka's own codes carry an underscore
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}

_HAS_MEMBERS = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
}
"""A coordinator's answers to a commit from outside while the group has members."""


def committed_checkpoints(
    kafka: Mapping[str, str], group: str, places: Sequence[tuple[str, int]], *, stable: bool = True
) -> dict[tuple[str, int], TopicPartition]:
    """Return committed offsets of a group with their metadata, by (topic, partition); places without one are left out.

    Args:
        stable: Whether open transactions are waited for (R18). Without that, the result was true once, and a
            checkpoint never goes back: enough to find what is settled, and not to go on from there.
    """
    with _group_member(kafka, group, "read_committed" if stable else "read_uncommitted") as member:
        return _committed(member, places)


def missing_offsets(kafka: Mapping[str, str], group: str, places: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    return set(places) - set(committed_checkpoints(kafka, group, places))


def commit_missing(
    kafka: Mapping[str, str], group: str, initial: Mapping[tuple[str, int], TopicPartition]
) -> set[tuple[str, int]]:
    """Commit offsets, with metadata, where the group has none yet; return where that was."""
    with _group_member(kafka, group) as member:
        committed = _committed(member, list(initial))
        missing = {place: offset for place, offset in initial.items() if place not in committed}
        if missing:
            _commit(member, list(missing.values()))
        return set(missing)


def is_group_refused(consumer: Consumer) -> bool:
    """Return whether Kafka refused the group to a client: it may not DESCRIBE it.

    Requests to the coordinator only time out then, because the client may not look it up.

    Args:
        consumer: One that joins no generation, after a request timed out.
    """
    while (event := consumer.poll(0)) is not None:
        error = event.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return True
    return False


class _Member(NamedTuple):
    """A consumer that joins no generation, the causes of its failed connections, and its group."""

    consumer: Consumer
    causes: Causes
    group: str


@contextmanager
def _group_member(kafka: Mapping[str, str], group: str, isolation: str = "read_committed") -> Iterator[_Member]:
    """Make a consumer that joins no generation; unlike the admin client it waits for the coordinator to be created."""
    causes = Causes()
    properties = {**causes.properties(), **logged(kafka), "group.id": group}
    with checked_properties():
        consumer = Consumer({**properties, "enable.auto.commit": False, "isolation.level": isolation})
    try:
        yield _Member(consumer, causes, group)
    finally:
        consumer.poll(0)  # for its log lines
        consumer.close()


def _committed(member: _Member, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], TopicPartition]:
    wanted = [TopicPartition(*place) for place in places]
    answers = _coordinated(
        member, "reading committed offsets", lambda: member.consumer.committed(wanted, ANSWER_SECONDS)
    )
    return {(answer.topic, answer.partition): answer for answer in answers if answer.offset >= 0}


def _commit(member: _Member, offsets: list[TopicPartition]) -> None:
    commit = member.consumer.commit
    _coordinated(member, "committing the initial checkpoint", lambda: commit(offsets=offsets, asynchronous=False))


def _coordinated(member: _Member, what: str, request: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    """Ask a group's coordinator, again while it is being made or moves, or a member may leave."""
    began = time.monotonic()
    while True:
        try:
            answers = request()
            error = next((answer.error for answer in answers if answer.error is not None), None)
        except KafkaException as failure:
            error = failure.args[0]
        if error is None:
            return answers
        passed = time.monotonic() - began
        if error.code() in _HAS_MEMBERS and passed > MEMBERS_SECONDS:
            raise ConfigurationError(
                f"{what} failed: {error.name()}. The group has members: stop the relays of the channel, run the "
                "command again, then start them"
            )
        if is_group_refused(member.consumer):
            raise ConfigurationError(
                f"{what} failed: GROUP_AUTHORIZATION_FAILED: this client lacks the right DESCRIBE on group "
                f"{member.group}, which READ includes. Grant it."
            )
        if error.code() not in _MOVING | _HAS_MEMBERS or passed > GROUP_TIMEOUT:
            raise refused(what, KafkaException(error), member.causes.explain(member.consumer))
        time.sleep(0.1)


RELAY, CHECKER = "relay", "checker"

NOT_SEEN: Mapping[str, int | None] = {RELAY: None, CHECKER: None}
"""Kafka does not answer."""

_WITHOUT = {RELAY: "nothing of the half partitions is delivered", CHECKER: "what is undecided stays so"}


def group_of(channel: Channel, service: str) -> str:
    return channel.relay_group if service == RELAY else channel.checker_group


def count_members(admin: AdminClient, channel: Channel) -> dict[str, int | None]:
    """Return how many members the groups of relays and checkers have, by service; None: that cannot be seen."""
    groups = {service: group_of(channel, service) for service in (RELAY, CHECKER)}
    answers = admin.describe_consumer_groups([*groups.values()], request_timeout=FIRST_ANSWER_SECONDS)
    found: dict[str, int | None] = {}
    for service, group in groups.items():
        try:
            found[service] = len(answers[group].result().members)
        except KafkaException:
            found[service] = None
    return found


def missing_member(channel: Channel, service: str) -> str:
    """Return the sentence that no process of a service serves a channel."""
    return f"group {group_of(channel, service)} has no member: no {service} runs, and {_WITHOUT[service]}"


def start(service: str) -> str:
    """Return what to do about it."""
    return f"start one: `outbox {service}`"
