"""The cache of topics: a topic that is there never passes for missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient

from outbox._kafka import topic_cache as topics
from outbox._kafka.topic_cache import REMEMBER_SECONDS, TopicCache
from outbox._rules.topic_description import TopicDescription


class Cluster:
    """Topics that exist, a clock, and what happens elsewhere while the cluster is asked."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.now = 1_000.0
        self.asked: list[set[str]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        """The clock, in seconds."""
        return self.now

    def describe(self, _admin: AdminClient, names: Sequence[str], *, writing: bool) -> dict[str, TopicDescription]:
        assert not writing
        self.asked.append(set(names))
        self.meanwhile()
        return {name: TopicDescription(name, name, 1, 1, {}) for name in names if name in self.names}

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster("a", "b")
    monkeypatch.setattr(topics, "describe_targets", made.describe)
    monkeypatch.setattr("outbox._kafka.topic_cache.time.monotonic", made.monotonic)
    return made


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
