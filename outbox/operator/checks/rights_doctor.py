"""The doctor's examination of rights: which of those that a role needs this client lacks in Kafka."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]  # public, not in its __all__

from outbox._kafka.admin import REQUEST_TIMEOUT, admin_client, answer, broker_setting, checked_properties
from outbox._kafka.client_log import logged
from outbox._rules.role_rights import Kind, Operation, Right
from outbox.errors import ConfigurationError
from outbox.operator.checks.finding import Finding

_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_PROBE = "doctor"
"""End of an id with a given prefix that no part of this project uses: a try under it fences none of them."""


_DESCRIBING = (Operation.READ, Operation.WRITE, Operation.DESCRIBE)
"""A client that may not describe a resource has none of these on it."""
_GRANT = "grant it: `outbox acl print` has the command"
_SETTING = "offsets.retention.minutes"


class RightsDoctor:
    """Asks the cluster what this client may do."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._admin = admin_client(kafka)

    def examine(self, rights: Sequence[Right]) -> Iterator[Finding]:
        """Yield one finding for each resource: the rights that are missing, or that none is.

        Args:
            rights: What the role needs; the rights on one resource follow each other.
        """
        try:
            self._topics = self._described([right.name for right in rights if _is_one_topic(right)])
        except ConfigurationError as error:
            yield Finding("broker", str(error), "start Kafka, or correct OUTBOX_BOOTSTRAP_SERVERS")
            return
        for _, service in groupby(rights, lambda right: right.resource):
            yield from self._resource(list(service))

    def _resource(self, rights: Sequence[Right]) -> Iterator[Finding]:
        first = rights[0]
        what = f"rights: {first.kind} {first.name}{'*' if first.prefixed else ''}"
        try:
            allowed = self._allowed(first)
        except KafkaException as error:
            yield _hidden(what, rights, error.args[0])
            return
        if allowed is None:
            yield Finding(what, "", f"{_listed(rights)} not checked: it cannot be asked without being used")
            return
        yield from findings(what, rights, allowed)

    def _allowed(self, right: Right) -> Collection[str] | None:
        """Return the operations that this client may use on a resource; None if that cannot be asked."""
        if _is_one_topic(right):
            return _operations(self._topics[right.name])
        if right.kind is Kind.GROUP:
            return self._of_group(f"{right.name}{_PROBE}" if right.prefixed else right.name)
        if right.kind is Kind.CLUSTER:
            # Its authorized operations are only for those who may also DESCRIBE it.
            return () if broker_setting(self._admin, _SETTING) is None else (Operation.DESCRIBE_CONFIGS,)
        if right.kind is Kind.TRANSACTIONAL_ID and right.prefixed:
            return self._of_transactional_ids(right.name)
        return None

    def _described(self, topics: list[str]) -> dict[str, Future[Any]]:
        if not topics:
            return {}
        asked = self._admin.describe_topics(
            TopicCollection(list(dict.fromkeys(topics))),
            include_authorized_operations=True,
            request_timeout=REQUEST_TIMEOUT,
        )
        for future in asked.values():
            if _code(future) not in {*_REFUSED, KafkaError.UNKNOWN_TOPIC_OR_PART}:
                answer(future, "describing topics", admin=self._admin)
        return dict(asked)

    def _of_group(self, name: str) -> Collection[str] | None:
        asked = self._admin.describe_consumer_groups(
            [name], include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT
        )
        return _operations(asked[name])

    def _of_transactional_ids(self, prefix: str) -> Collection[str]:
        """Return what this client may do with ids of a prefix: it begins under one that no other client uses."""
        config = {**logged(self._kafka), "transactional.id": f"{prefix}{_PROBE}"}
        with checked_properties():
            producer = Producer(config)
        try:
            producer.init_transactions(REQUEST_TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() in _REFUSED:
                return ()
            raise
        return (Operation.WRITE, Operation.DESCRIBE)


def findings(what: str, rights: Iterable[Right], allowed: Collection[str]) -> Iterator[Finding]:
    """Yield what is missing of the rights on one resource."""
    needed = list(rights)
    lacks = [right for right in needed if right.operation not in allowed]
    for right in lacks:
        if right.otherwise:
            yield Finding(what, "", f"{right.operation} is missing: {right.otherwise}")
        else:
            yield Finding(what, f"{right.operation} is missing", _GRANT)
    if not lacks:
        yield Finding(what, "", _listed(needed))


def _hidden(what: str, rights: Sequence[Right], error: KafkaError) -> Finding:
    """Return why Kafka does not show the rights on a resource."""
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return Finding(what, "", f"{_listed(rights)} not checked: there is no such topic yet")
    if error.code() not in _REFUSED:
        return Finding(what, "", f"{_listed(rights)} not checked: {error.str()}")
    lacks = _undescribed(rights)
    if all(right.otherwise for right in rights):
        return Finding(what, "", f"{lacks}: {rights[0].otherwise}")
    return Finding(what, lacks, _GRANT)


def _undescribed(rights: Sequence[Right]) -> str:
    """Return what is missing of the rights on a resource that this client may not even describe.

    READ and WRITE include DESCRIBE: where the role needs one of them, that one is missing, and `outbox acl print` has
    it. What the role can do without is named only if it needs none of the others.
    """
    describing = [right for right in rights if right.operation in _DESCRIBING]
    missing = [right for right in describing if not right.otherwise] or describing
    named = " and ".join(right.operation for right in missing) or Operation.DESCRIBE
    lacks = f"{named} {'are' if len(missing) > 1 else 'is'} missing"
    others = _listed(right for right in rights if right not in describing)
    return f"{lacks}, and without it Kafka does not show whether there is {others}" if others else lacks


def _is_one_topic(right: Right) -> bool:
    return right.kind is Kind.TOPIC and not right.prefixed and right.name != "*"


def _listed(rights: Iterable[Right]) -> str:
    return ", ".join(right.operation for right in rights)


def _code(future: Future[Any]) -> int | None:
    error = future.exception()
    return error.args[0].code() if isinstance(error, KafkaException) else None


def _operations(future: Future[Any]) -> Collection[str] | None:
    """Return the names of the operations in an answer; None if it has none."""
    allowed: Sequence[AclOperation] | None = future.result(REQUEST_TIMEOUT).authorized_operations
    return None if allowed is None else [operation.name for operation in allowed]
