"""Descriptions of real topics: which is served, and when it is renewed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient

from outbox._half.sender import Sender
from outbox._kafka import topic_cache
from outbox._kafka.topic_cache import FRESH_SECONDS, RETRY_SECONDS, USABLE_SECONDS, KnownTopics
from outbox._rules.topic_description import TopicDescription
from outbox.errors import KafkaUnreachable, PublishFailed
from outbox.settings import HalfSettings
from tests.support.harness import wait_until


class Cluster:
    """Topics that exist, and a clock."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.names = {"a", "op"}
        self.asked: list[str] = []
        self.is_down = False

    def monotonic(self) -> float:
        """Return the time, in seconds."""
        return self.now

    def describe(self, _admin: AdminClient, names: Sequence[str], _timeout: float) -> dict[str, TopicDescription]:
        self.asked.append(",".join(sorted(names)))
        if self.is_down:
            raise KafkaUnreachable("Kafka does not answer")
        return {name: TopicDescription(name, name, 1, 1, {}) for name in names if name in self.names}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(topic_cache, "describe_targets", made.describe)
    monkeypatch.setattr(
        topic_cache, "end_offsets", lambda _admin, partitions, _timeout: dict.fromkeys(partitions, (7,))
    )
    monkeypatch.setattr("outbox._kafka.topic_cache.time.monotonic", made.monotonic)
    return made


@pytest.fixture
def known(cluster: Cluster) -> KnownTopics:
    del cluster
    return KnownTopics(AdminClient({"bootstrap.servers": "127.0.0.1:9", "log_level": 0}), 1.0, ["op"])


def test_description_is_usable_while_it_is_renewed(cluster: Cluster, known: KnownTopics) -> None:
    assert known.usable("a") is None
    assert known.ask("a") is not None
    assert not known.is_due("a")
    cluster.now += FRESH_SECONDS + 1
    assert known.is_due("a")
    assert known.usable("a") is not None


def test_description_that_is_too_old_serves_nobody(cluster: Cluster, known: KnownTopics) -> None:
    known.ask("a")
    cluster.now += USABLE_SECONDS + 1
    assert known.usable("a") is None


def test_deleted_topic_is_forgotten_when_renewed(cluster: Cluster, known: KnownTopics) -> None:
    known.ask("a")
    cluster.names.remove("a")
    assert known.ask("a") is None
    assert known.usable("a") is None
    assert known.usable("op") is not None


def test_failed_renewal_keeps_the_description_and_pauses(cluster: Cluster, known: KnownTopics) -> None:
    known.ask("a")
    cluster.now += FRESH_SECONDS + 1
    cluster.is_down = True
    with pytest.raises(KafkaUnreachable):
        known.ask("a")
    assert known.usable("a") is not None
    assert not known.is_due("a")
    cluster.now += RETRY_SECONDS + 1
    assert known.is_due("a")


def test_ends_of_what_is_described_beside_are_learned(known: KnownTopics) -> None:
    before = known.ends
    known.ask("a")
    assert before == {}, "it never changes"
    assert known.ends == {"op": (7,)}


def test_publisher_never_waits_for_a_renewal(cluster: Cluster, known: KnownTopics) -> None:
    sender = Sender(HalfSettings("orders", kafka={"bootstrap.servers": "127.0.0.1:9"}))
    sender._topics, sender._producer = known, object()  # type: ignore[assignment]  # as if it were connected
    sender._channel = object()  # type: ignore[assignment]  # as above
    known.ask("a")
    cluster.now += FRESH_SECONDS + 1
    nothing = sender.budget()
    nothing._left = 0.0  # whoever waits with it fails
    cluster.is_down = True
    assert sender.real_topic("a", nothing) is not None
    wait_until(lambda: cluster.asked == ["a,op", "a,op"])
    with pytest.raises(PublishFailed):
        sender.real_topic("b", nothing)
