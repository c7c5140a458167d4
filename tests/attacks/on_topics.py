"""Attacks on topics: with the Kafka client and the credentials of team-a's application."""

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from tests.attacks.attack import DONE, SECONDS, Attack, By, answer, refusal
from tests.attacks.forging import new_id, send
from tests.attacks.teams import Teams

FORBIDDEN = "TOPIC_AUTHORIZATION_FAILED"
HIDDEN = "not listed"
UNKNOWN = "_NOENT"
"""The client itself finds no topic of this name: Kafka does not show it."""


def _writes(topic: str) -> Callable[[Teams], str]:
    return lambda teams: refusal(lambda: send(teams.a.kafka(), topic))


def _reads(topic: str) -> Callable[[Teams], str]:
    return lambda teams: refusal(lambda: read(teams, topic))


def read(teams: Teams, topic: str) -> bytes | None:
    """Read one record as team-a's application, in the one consumer group that it may join."""
    service = teams.a.site.channel.listener_group(teams.a.service)
    consumer = Consumer({**teams.a.kafka(), "group.id": service, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                if error := message.error():
                    raise KafkaException(error)
                return message.value()
    finally:
        consumer.close()
    raise AssertionError(f"no record and no error from {topic} within {SECONDS} s")


def _forges_verdict(channel: str) -> Callable[[Teams], str]:
    def run(teams: Teams) -> str:
        entry = OpEntry(OpKind.COMMIT, new_id(), teams.b.description.half.id, 0, Positions.first(1), 0, 0)
        value, headers = encode_op([entry], OpSource.OPERATOR)
        return refusal(lambda: send(teams.a.kafka(), f"{channel}.verdict", value, None, list(headers)))

    return run


def _deletes(*topics: str) -> Callable[[Teams], str]:
    return lambda teams: answer(teams.admin.delete_topics(list(topics)))


def _creates(topic: str) -> Callable[[Teams], str]:
    return lambda teams: answer(teams.admin.create_topics([NewTopic(topic, 1, 1)]))


def _grows(topic: str) -> Callable[[Teams], str]:
    return lambda teams: answer(teams.admin.create_partitions([NewPartitions(topic, 9)]))


def _alters(topic: str) -> Callable[[Teams], str]:
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    return lambda teams: answer(teams.admin.incremental_alter_configs([resource]))


def _empties(topic: str) -> Callable[[Teams], str]:
    return lambda teams: answer(teams.admin.delete_records([TopicPartition(topic, 0, -1)]))


def _describes(topic: str) -> Callable[[Teams], str]:
    return lambda teams: answer(teams.admin.describe_topics(TopicCollection([topic])))


def _lists(teams: Teams) -> str:
    found = teams.admin.list_topics(timeout=SECONDS).topics
    return DONE if any(name.startswith(teams.b.name) for name in found) else HIDDEN


ON_TOPICS = (
    Attack("write to a real topic of team-b", By.KAFKA, FORBIDDEN, _writes("team_b.orders")),
    Attack("write to a real topic of its own, past the relay", By.KAFKA, FORBIDDEN, _writes("team_a.orders")),
    Attack("write a half into team-b's half topic", By.KAFKA, FORBIDDEN, _writes("team_b.half")),
    Attack("write an op marker into team-b's op topic", By.KAFKA, FORBIDDEN, _writes("team_b.op")),
    Attack("forge a verdict in team-b's verdict topic", By.KAFKA, FORBIDDEN, _forges_verdict("team_b")),
    Attack("forge a verdict in its own verdict topic", By.KAFKA, FORBIDDEN, _forges_verdict("team_a")),
    Attack("write a check request into team-b's check topic", By.KAFKA, FORBIDDEN, _writes("team_b.check")),
    Attack("write a check request into its own check topic", By.KAFKA, FORBIDDEN, _writes("team_a.check")),
    Attack("write into team-b's discard topic", By.KAFKA, FORBIDDEN, _writes("team_b.discard")),
    Attack("write into its own discard topic", By.KAFKA, FORBIDDEN, _writes("team_a.discard")),
    Attack("write to `_schemas`", By.KAFKA, FORBIDDEN, _writes("_schemas")),
    Attack("read a real topic of team-b", By.KAFKA, FORBIDDEN, _reads("team_b.orders")),
    Attack("read team-b's half topic", By.KAFKA, FORBIDDEN, _reads("team_b.half")),
    Attack("read team-b's discard topic", By.KAFKA, FORBIDDEN, _reads("team_b.discard")),
    Attack("read team-b's check topic, where a listener's messages are", By.KAFKA, FORBIDDEN, _reads("team_b.check")),
    Attack(
        "read the half topic of its own channel, with messages of other applications",
        By.KAFKA,
        FORBIDDEN,
        _reads("team_a.half"),
    ),
    Attack("read `__consumer_offsets`", By.KAFKA, FORBIDDEN, _reads("__consumer_offsets")),
    Attack("read `__transaction_state`", By.KAFKA, FORBIDDEN, _reads("__transaction_state")),
    Attack("list topics of team-b", By.KAFKA, HIDDEN, _lists),
    Attack("describe team-b's half topic", By.KAFKA, FORBIDDEN, _describes("team_b.half")),
    Attack("delete team-b's topics", By.KAFKA, FORBIDDEN, _deletes("team_b.orders", "team_b.half", "team_b.op")),
    Attack("delete its own half topic", By.KAFKA, FORBIDDEN, _deletes("team_a.half")),
    Attack("create a topic that team-b is to use", By.KAFKA, FORBIDDEN, _creates("team_b.new")),
    Attack("add partitions to team-b's half topic", By.KAFKA, FORBIDDEN, _grows("team_b.half")),
    Attack("lower the retention of team-b's half topic", By.KAFKA, FORBIDDEN, _alters("team_b.half")),
    Attack("lower the retention of its own half topic", By.KAFKA, FORBIDDEN, _alters("team_a.half")),
    Attack("delete the records of team-b's half topic", By.KAFKA, UNKNOWN, _empties("team_b.half")),
    Attack("delete the records of its own half topic", By.KAFKA, FORBIDDEN, _empties("team_a.half")),
)
