"""Whether a service has joined its group: metadata of no generation would fence nobody (H5); and rights it lacks."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from outbox._service import membership
from outbox._service.membership import Membership, generation, group_name, not_joined, refuse_missing_right, static_name
from outbox.errors import ConfigurationError
from relay.delivery.producer import DeliveryError
from relay.half.serving.commits import GroupMetadata

NAMES = {"group": "shop-relay", "topic": "shop.half", "transactional id": "shop-relay-0"}


def _metadata(number: int) -> bytes:
    return b"CGMDv2:" + number.to_bytes(4, sys.byteorder, signed=True) + b"group\0member\0"


def _for_commit(newest: bytes) -> bytes:
    found = GroupMetadata()
    found.newest = newest
    return found.for_commit()


@pytest.mark.parametrize("metadata", [b"", _metadata(-1)])
def test_membership_without_a_generation_is_not_ready(metadata: bytes) -> None:
    assert generation(metadata) == -1
    assert not_joined(metadata, "shop-relay") == "the consumer has not joined group shop-relay"


def test_the_group_of_a_member_has_its_name() -> None:
    assert group_name(_metadata(7)) == "group"
    assert group_name(Consumer({"bootstrap.servers": "", "group.id": "shop-table.a"}).consumer_group_metadata()) == (
        "shop-table.a"
    )


@pytest.mark.parametrize("number", [0, 1, 70_000, 2**31 - 1])
def test_membership_of_a_generation_is_ready(number: int) -> None:
    assert generation(_metadata(number)) == number
    assert not_joined(_metadata(number), "shop-relay") is None
    assert _for_commit(_metadata(number)) == _metadata(number)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "READ on group shop-relay"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "READ on topic shop.half"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "READ on transactional id shop-relay-0"),
    ],
)
def test_missing_right_is_refused_by_name(code: int, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        refuse_missing_right(KafkaError(code), "READ", NAMES)


def test_missing_right_of_another_error_is_none() -> None:
    refuse_missing_right(KafkaError(KafkaError._ALL_BROKERS_DOWN), "READ", NAMES)
    refuse_missing_right(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "READ", {"group": "shop-relay"})


def _consumer(members: Iterable[str | None] = (None,), **options: object) -> Mock:
    """Return a consumer that has these member ids, one after the other."""
    return Mock(spec=Consumer, **{"memberid.side_effect": members}, **options)


@pytest.mark.parametrize(
    ("stays", "calls"), [(True, ["close"]), (False, ["unsubscribe", "poll", "poll", "close"])], ids=["stays", "leaves"]
)
def test_a_static_member_leaves_its_group_unless_its_place_is_kept(*, stays: bool, calls: list[str]) -> None:
    consumer = _consumer(["its id", "its id", None])
    Membership(consumer, stays=stays).leave()
    assert [name for name, _, _ in consumer.method_calls if name != "memberid"] == calls


PROGRAM = """
import sys
from outbox._service.membership import static_name
print(static_name("kafka:9092", sys.argv[1]), flush=True)
input()
"""


@contextmanager
def _named(group: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Have another process take a name."""
    words = [sys.executable, "-c", PROGRAM, group]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_name_is_that_of_a_killed_process_and_of_no_living_one() -> None:
    group = f"group of {os.getpid()}"
    own = static_name("kafka:9092", group)
    assert static_name("kafka:9092", group) == own
    with _named(group) as (process, killed), _named(group) as (_, living):
        assert len({own, killed, living}) == 3
        process.kill()
        process.wait()
        with _named(group) as (_, successor):
            assert successor == killed


def test_a_member_that_kafka_does_not_let_go_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread and its client would live on in a process that serves other channels, or begins again."""
    monkeypatch.setattr(membership, "LEAVE_SECONDS", 0.05)
    for failure in (None, KafkaException(KafkaError(KafkaError._FATAL))):
        consumer, closed = _consumer(itertools.repeat("its id")), threading.Event()
        consumer.unsubscribe.side_effect, consumer.close.side_effect = failure, closed.set
        Membership(consumer).leave()
        assert closed.wait(10)


def test_a_group_that_does_not_let_a_consumer_go_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "LEAVE_SECONDS", 0.01)
    answered = threading.Event()
    with capture_logs() as logs:
        Membership(_consumer(close=Mock(side_effect=answered.wait))).leave()
    assert [one["event"] for one in logs] == ["Group not left in time; Kafka drops the member when its session expires"]
    answered.set()


def test_what_a_callback_raises_while_a_consumer_leaves_its_group_is_raised() -> None:
    with pytest.raises(ConfigurationError, match="no right"):
        Membership(_consumer(close=Mock(side_effect=ConfigurationError("no right")))).leave()


def test_an_assignment_that_comes_while_a_consumer_leaves_its_group_is_not_taken() -> None:
    """The client has no group metadata any more then, and the callback of the relay would fail."""
    consumer = _consumer()
    assigned, revoked = Mock(), Mock()
    member, partitions = Membership(consumer), [TopicPartition("shop.half", 0)]
    member.subscribe(["shop.half"], assigned, revoked)
    callbacks = consumer.subscribe.call_args.kwargs
    callbacks["on_assign"](consumer, partitions)
    assigned.assert_called_once_with(consumer, partitions)

    def close() -> None:
        callbacks["on_assign"](consumer, partitions)
        callbacks["on_revoke"](consumer, partitions)

    consumer.close.side_effect = close
    member.leave()
    assigned.assert_called_once()
    revoked.assert_called_once_with(consumer, partitions)


def test_offsets_are_not_committed_without_a_generation() -> None:
    with pytest.raises(DeliveryError, match="no generation"):
        _for_commit(_metadata(-1))
