"""What a service needs of Kafka to be ready (R43): membership of its group, and rights; and leaving the group."""

import hashlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # public, not in its __all__

from outbox._kafka.admin import REQUEST_TIMEOUT, answer
from outbox._service.channels.channel_context import current_channel, enter_channel
from outbox.errors import ConfigurationError, OutboxError

log = structlog.get_logger()

LEAVE_SECONDS = 10.0
"""Time for a consumer to leave its group; `Consumer.close()` has no limit of its own."""

Callback = Callable[[Consumer, list[TopicPartition]], None]

_GENERATION = slice(7, 11)  # librdkafka's opaque metadata: "CGMDv2:", then the generation in this machine's byte order


def generation(group_metadata: bytes) -> int:
    """Return the generation in a consumer's group metadata, -1 if it is in none."""
    if not group_metadata:
        return -1
    return int.from_bytes(group_metadata[_GENERATION], sys.byteorder, signed=True)


def group_name(group_metadata: bytes) -> str:
    """Return the name of the group in a consumer's group metadata."""
    return group_metadata[_GENERATION.stop :].partition(b"\0")[0].decode()


def not_joined(group_metadata: bytes, group: str) -> str | None:
    """Return why a service is not ready, if its consumer is not a member of its group.

    A member without partitions (a standby) is ready.
    """
    return f"the consumer has not joined group {group}" if generation(group_metadata) < 0 else None


_MOST_NAMES = 1_000


@cache
def static_name(cluster: str, group: str) -> str:
    """Return a static name for a member of a group (KIP-345) which its successor has too, after a kill -9.

    It is of this boot and this network namespace; there an abstract Unix socket, which is gone with its process, keeps
    each number to one process. Where there is none, as outside Linux, the name is empty.
    """
    place = f"\0outbox-{hashlib.sha256(f'{cluster} {group}'.encode()).hexdigest()}"
    with socket.socket(socket.AF_UNIX) as held, suppress(OSError, StopIteration):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
        network = Path("/proc/self/ns/net").stat().st_ino
        number = next(number for number in range(_MOST_NAMES) if _is_bound(held, f"{place}-{number}"))
        held.detach()  # it stays bound for the rest of this process
        return f"{socket.gethostname()}-{boot}-{network}-{number}"
    return ""


def _is_bound(held: socket.socket, place: str) -> bool:
    """Bind a socket, unless another process has the place."""
    try:
        held.bind(place)
    except OSError:
        return False
    return True


class MemberFenced(OutboxError):  # noqa: N818 - the name describes the state of the member
    """Kafka has another consumer of the same static name: another process, or this one as it was before its session."""


class Membership:
    """The membership of a consumer in its group; if it `stays`, its partitions wait for the next of its name."""

    def __init__(self, consumer: Consumer, *, stays: bool = False) -> None:
        self._consumer = consumer
        self._stays = stays
        self._leaving = False

    def subscribe(self, topics: Sequence[str], on_assign: Callback, on_revoke: Callback | None = None) -> None:
        """Subscribe, with calls until the consumer leaves; without `on_revoke` librdkafka gives partitions up."""

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            # close() hands over what the group assigned before it. It is not read any more, and librdkafka may
            # refuse each call of a consumer that leaves.
            if not self._leaving:
                on_assign(consumer, partitions)

        if on_revoke is None:
            self._consumer.subscribe(list(topics), on_assign=assigned)
        else:
            self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=on_revoke, on_lost=on_revoke)

    def leave(self) -> None:
        """Close the consumer of a process that ends.

        It leaves its group, so that others need not wait for its session to expire. If Kafka does not answer within
        `LEAVE_SECONDS`, the process ends all the same, and the session expires.
        """
        self._leaving = True
        left: Future[None] = Future()
        channel = current_channel()

        def close() -> None:
            enter_channel(channel)
            try:
                if not self._stays:
                    self._give_back()
                self._consumer.close()
                left.set_result(None)
            except BaseException as error:  # noqa: BLE001 - raised to the caller
                left.set_exception(error)

        threading.Thread(target=close, name="leave-group", daemon=True).start()
        try:
            left.result(LEAVE_SECONDS)
        except TimeoutError:
            log.warning(
                "Group not left in time; Kafka drops the member when its session expires", seconds=LEAVE_SECONDS
            )

    def _give_back(self) -> None:
        """Leave the group before the consumer is closed: a static member that is closed stays in it."""
        until = time.monotonic() + LEAVE_SECONDS
        with suppress(KafkaException):  # of one that has failed for good: another process has its name
            self._consumer.unsubscribe()
            while self._consumer.memberid() and time.monotonic() < until:
                self._consumer.poll(0.05)


_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
}


def require_rights(admin: AdminClient, needed: Mapping[str, Collection[AclOperation]]) -> None:
    """Check the rights that a service cannot work without: operations by topic, each of which exists."""
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
