"""Attacks on consumer groups, transactional ids, users and rights in Kafka."""

import time
from collections.abc import Callable

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.attacks.attack import DONE, SECONDS, Attack, By, answer, refusal
from tests.attacks.on_topics import HIDDEN
from tests.attacks.teams import Teams

NO_GROUP = "GROUP_AUTHORIZATION_FAILED"
NO_CLUSTER = "CLUSTER_AUTHORIZATION_FAILED"
NO_ID = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def _joins(service: str) -> Callable[[Teams], str]:
    def run(teams: Teams) -> str:
        consumer = Consumer({**teams.a.kafka(), "group.id": service})
        consumer.subscribe([teams.a.topics[0]])
        deadline = time.monotonic() + SECONDS
        try:
            while time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and (error := message.error()):
                    return str(error.name())
                if consumer.assignment():
                    return DONE
        finally:
            consumer.close()
        return "no answer"

    return run


def _commits(service: str, topic: str) -> Callable[[Teams], str]:
    wanted = ConsumerGroupTopicPartitions(service, [TopicPartition(topic, 0, 0)])
    return lambda teams: answer(teams.admin.alter_consumer_group_offsets([wanted]), _check)


def _looks(service: str) -> Callable[[Teams], str]:
    wanted = ConsumerGroupTopicPartitions(service)
    return lambda teams: answer(teams.admin.list_consumer_group_offsets([wanted]), _check)


def _check(found: ConsumerGroupTopicPartitions) -> None:
    """Raise the error of a partition: the request as a whole may succeed."""
    for place in found.topic_partitions or ():
        if place.error is not None:
            raise KafkaException(place.error)


def _deletes(service: str) -> Callable[[Teams], str]:
    return lambda teams: answer(teams.admin.delete_consumer_groups([service]))


def _lists(teams: Teams) -> str:
    listed = teams.admin.list_consumer_groups().result(SECONDS)
    return DONE if any(one.group_id.startswith(teams.b.name) for one in listed.valid) else HIDDEN


def _fences(transactional_id: str) -> Callable[[Teams], str]:
    def run(teams: Teams) -> str:
        producer = Producer({**teams.a.kafka(), "transactional.id": transactional_id})
        return refusal(lambda: producer.init_transactions(SECONDS))

    return run


def _gives_itself_rights(teams: Teams) -> str:
    who = f"User:{teams.a.application}"
    rule = AclBinding(
        ResourceType.TOPIC, "team_b.orders", ResourcePatternType.LITERAL, who, "*", AclOperation.ALL,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    return answer(teams.admin.create_acls([rule]))


def _takes_rights_away(teams: Teams) -> str:
    rule = AclBindingFilter(
        ResourceType.TOPIC, "team_b.half", ResourcePatternType.LITERAL, None, None, AclOperation.ANY,  # type: ignore[arg-type]
        AclPermissionType.ANY,
    )  # fmt: skip
    return answer(teams.admin.delete_acls([rule]))


def _changes_password(teams: Teams) -> str:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    change = UserScramCredentialUpsertion(teams.b.application, credential, b"mine")
    return answer(teams.admin.alter_user_scram_credentials([change]))


def _guesses_password(teams: Teams) -> str:
    errors: list[KafkaError] = []
    login = {"sasl.username": teams.b.application, "sasl.password": "guessed"}
    client = AdminClient({**teams.a.kafka(), **login, "error_cb": errors.append, "log_level": 0})  # type: ignore[dict-item]  # a callback
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        client.poll(0.2)
        if found := [error for error in errors if error.code() == KafkaError._AUTHENTICATION]:
            return str(found[0].name())
    return "no answer"


ON_CLIENTS = (
    Attack("join the consumer group of team-b's relay", By.KAFKA, NO_GROUP, _joins("team_b-relay")),
    Attack("join the consumer group of its own relay", By.KAFKA, NO_GROUP, _joins("team_a-relay")),
    Attack("join the consumer group of team-b's checker", By.KAFKA, NO_GROUP, _joins("team_b-checker")),
    Attack("join the consumer group of team-b's listeners", By.KAFKA, NO_GROUP, _joins("team_b-listeners.team_b-shop")),
    Attack("set a checkpoint of team-b's relay back", By.KAFKA, NO_GROUP, _commits("team_b-relay", "team_b.half")),
    Attack("set a checkpoint of its own relay back", By.KAFKA, NO_GROUP, _commits("team_a-relay", "team_a.half")),
    Attack(
        "set the progress of team-b's table source back",
        By.KAFKA,
        NO_GROUP,
        _commits("team_b-table.shop", "team_b.half"),
    ),
    Attack("read the checkpoints of team-b's relay", By.KAFKA, NO_GROUP, _looks("team_b-relay")),
    Attack("delete the consumer group of team-b's relay", By.KAFKA, NO_GROUP, _deletes("team_b-relay")),
    Attack("list consumer groups of team-b", By.KAFKA, HIDDEN, _lists),
    Attack("fence team-b's relay by its transactional id", By.KAFKA, NO_ID, _fences("team_b-relay-0")),
    Attack("fence the owner of team-b's table source", By.KAFKA, NO_ID, _fences("team_b-table.shop")),
    Attack("begin a Kafka transaction, which could hold up its own relay", By.KAFKA, NO_ID, _fences("anything")),
    Attack("fence its own relay", By.KAFKA, NO_ID, _fences("team_a-relay-0")),
    Attack("give itself a right on team-b's topic", By.KAFKA, NO_CLUSTER, _gives_itself_rights),
    Attack("take the rights on team-b's half topic away", By.KAFKA, NO_CLUSTER, _takes_rights_away),
    Attack("change the password of team-b's application", By.KAFKA, NO_CLUSTER, _changes_password),
    Attack("log in as team-b's application with a guessed password", By.KAFKA, "_AUTHENTICATION", _guesses_password),
)
