"""Descriptions of real topics: which is served, when it is renewed; one that is there never passes for missing."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient

from outbox._half.sender import Sender
from outbox._kafka import topic_cache
from outbox._kafka.topic_cache import (
    FRESH_SECONDS,
    REMEMBER_SECONDS,
    RETRY_SECONDS,
    USABLE_SECONDS,
    KnownTopics,
    TopicCache,
)
from outbox._rules.topic_description import TopicDescription
from outbox.errors import KafkaUnreachable, PublishFailed
from outbox.settings import HalfSettings
from tests.support.harness import wait_until


class Cluster:
    """Topics that exist, a clock, and what happens elsewhere while the cluster is asked."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.names = {"a", "b", "op"}
        self.asked: list[set[str]] = []
        self.is_down = False
        self.meanwhile: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def describe(
        self, _admin: AdminClient, names: Sequence[str], _timeout: float = 0.0, *, writing: bool = False
    ) -> dict[str, TopicDescription]:
        assert not writing
        self.asked.append(set(names))
        self.meanwhile()
        if self.is_down:
            raise KafkaUnreachable("Kafka does not answer")
        return {name: TopicDescription(name, name, 1, 1, {}) for name in names if name in self.names}

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(topic_cache, "describe_targets", made.describe)
    monkeypatch.setattr(topic_cache, "end_offsets", lambda _admin, places, _timeout: dict.fromkeys(places, (7,)))
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
    cluster.wait(FRESH_SECONDS + 1)
    assert known.is_due("a")
    assert known.usable("a") is not None


def test_description_that_is_too_old_serves_nobody(cluster: Cluster, known: KnownTopics) -> None:
    known.ask("a")
    cluster.wait(USABLE_SECONDS + 1)
    assert known.usable("a") is None


def test_deleted_topic_is_forgotten_when_renewed(cluster: Cluster, known: KnownTopics) -> None:
    known.ask("a")
    cluster.names.remove("a")
    assert known.ask("a") is None
    assert known.usable("a") is None
    assert known.usable("op") is not None


def test_failed_renewal_keeps_the_description_and_pauses(cluster: Cluster, known: KnownTopics) -> None:
    known.ask("a")
    cluster.wait(FRESH_SECONDS + 1)
    cluster.is_down = True
    with pytest.raises(KafkaUnreachable):
        known.ask("a")
    assert known.usable("a") is not None
    assert not known.is_due("a")
    cluster.wait(RETRY_SECONDS + 1)
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
    cluster.wait(FRESH_SECONDS + 1)
    nothing = sender.budget()
    nothing._left = 0.0  # whoever waits with it fails
    cluster.is_down = True
    assert sender.real_topic("a", nothing) is not None
    wait_until(lambda: cluster.asked == [{"a", "op"}] * 2)
    with pytest.raises(PublishFailed):
        sender.real_topic("c", nothing)
    wait_until(lambda: {"c", "op"} in cluster.asked)  # its thread asks the next test's cluster otherwise


@pytest.fixture
def cache() -> TopicCache:
    return TopicCache(AdminClient({"bootstrap.servers": "127.0.0.1:9", "log_level": 0}))


def test_what_is_remembered_is_not_asked_for(cluster: Cluster, cache: TopicCache) -> None:
    assert set(cache.describe({"a"})) == {"a"}
    assert set(cache.describe({"a", "b"})) == {"a", "b"}
    assert set(cache.describe({"a", "b"})) == {"a", "b"}
    assert cluster.asked == [{"a"}, {"b"}]


def test_what_is_described_again_is_fetched_and_remembered(cluster: Cluster, cache: TopicCache) -> None:
    cache.describe({"a"})
    assert set(cache.describe_again({"a", "c"})) == {"a"}
    assert set(cache.describe({"a"})) == {"a"}
    assert cluster.asked == [{"a"}, {"a", "c"}]


def test_what_is_missing_is_asked_for_each_time(cluster: Cluster, cache: TopicCache) -> None:
    assert cache.describe({"c"}) == {}
    cluster.names.add("c")
    assert set(cache.describe({"c"})) == {"c"}


def test_after_a_while_a_topic_is_asked_for_again(cluster: Cluster, cache: TopicCache) -> None:
    cache.describe({"a"})
    cluster.names.remove("a")
    cluster.wait(REMEMBER_SECONDS + 1)
    assert cache.describe({"a"}) == {}


def test_a_topic_that_expires_while_another_is_asked_for_is_there(cluster: Cluster, cache: TopicCache) -> None:
    cache.describe({"a"})
    cluster.wait(REMEMBER_SECONDS - 1)
    cluster.meanwhile = lambda: cluster.wait(2)
    assert set(cache.describe({"a", "b"})) == {"a", "b"}


def test_an_answer_that_takes_longer_than_it_is_remembered_counts(cluster: Cluster, cache: TopicCache) -> None:
    cluster.meanwhile = lambda: cluster.wait(REMEMBER_SECONDS + 1)
    assert set(cache.describe({"a"})) == {"a"}


def test_what_another_thread_has_forgotten_meanwhile_is_there(cluster: Cluster, cache: TopicCache) -> None:
    cache.describe({"a"})
    cluster.meanwhile = cache.forget
    assert set(cache.describe({"a", "b"})) == {"a", "b"}


def test_threads_that_ask_forget_and_count_do_not_hurt_each_other(cluster: Cluster, cache: TopicCache) -> None:
    names = [f"topic-{number}" for number in range(2_000)]
    cluster.names.update(names)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(lambda: [cache.describe_again({name}) for name in names])
            while not asked.done():
                cache.forget()
                cache.described()
            asked.result()
    finally:
        sys.setswitchinterval(interval)
    assert set(cache.described()) == set(names)
