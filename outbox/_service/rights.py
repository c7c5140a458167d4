"""Rights in Kafka that a service lacks: it ends with one line that names them (R43)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # public, not in its __all__

from outbox._kafka.admin import REQUEST_TIMEOUT, answer
from outbox.errors import ConfigurationError

_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
}


def require_rights(admin: AdminClient, needed: Mapping[str, Collection[AclOperation]]) -> None:
    """Check the rights on topics that a service cannot work without.

    Args:
        needed: Operations by topic; the topics exist.
    """
    asked = admin.describe_topics(
        TopicCollection(list(needed)), include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT
    )
    lacks = []
    for topic, future in asked.items():
        allowed = answer(future, "describing topics", admin=admin).authorized_operations
        missing = [one.name for one in needed[topic] if allowed is not None and one not in allowed]
        lacks += [f"{' and '.join(missing)} on topic {topic}"] if missing else []
    if lacks:
        raise ConfigurationError(f"This client lacks rights in Kafka: {', '.join(sorted(lacks))}. Grant them.")


def refuse_missing_right(error: KafkaError, rights: str, names: Mapping[str, str]) -> None:
    """Raise if an error is about a missing right: no retry helps.

    Args:
        rights: The rights that are needed, such as READ.
        names: Names of the resources that it may be about, by kind: topic, group, transactional id.
    """
    kind = _REFUSALS.get(error.code())
    if kind is not None and kind in names:
        raise ConfigurationError(
            f"This client lacks rights in Kafka: {rights} on {kind} {names[kind]} ({error.name()}). Grant them."
        )
