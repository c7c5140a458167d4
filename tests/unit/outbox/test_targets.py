"""Topics to which messages go: which are of a channel, by whether a sibling exists; what an error of Kafka means."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from outbox._kafka import admin
from outbox._kafka.admin import describe_targets, describe_topics, refused
from outbox._rules.topic_description import TopicDescription
from outbox.errors import KafkaUnreachable

CLIENT = AdminClient({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})


@pytest.fixture
def existing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Topics that exist, by name, with the right that this client lacks."""
    made: dict[str, str] = {}

    def describe(_admin: AdminClient, names: Sequence[str], _timeout: float, *, writing: bool) -> object:
        assert writing
        return {name: TopicDescription(name, name, 1, 1, {}, made[name]) for name in names if name in made}

    monkeypatch.setattr(admin, "describe_topics", describe)
    return made


def _described(*names: str) -> dict[str, tuple[str, bool]]:
    found = describe_targets(CLIENT, names, writing=True)
    return {name: (topic.lacks, topic.of_channel) for name, topic in found.items()}


def test_topic_is_of_channel_if_sibling_exists(existing: dict[str, str]) -> None:
    existing.update({"a.check": "", "b.check": "", "b.half": "", "orders": ""})
    found = _described("a.check", "b.check", "orders", "missing")
    assert found == {"a.check": ("", False), "b.check": ("", True), "orders": ("", False)}


def test_sibling_without_write_right_exists(existing: dict[str, str]) -> None:
    existing.update({"b.half": "WRITE on topic b.half", "b.op": "DESCRIBE_CONFIGS on topic b.op"})
    write, describe = ("WRITE on topic b.half", True), ("DESCRIBE_CONFIGS on topic b.op", True)
    assert _described("b.half", "b.op") == {"b.half": write, "b.op": describe}


def test_hidden_sibling_closes_the_topic(existing: dict[str, str]) -> None:
    existing.update({"b.check": "", "b.half": "DESCRIBE on topic b.half", "c.op": "WRITE on topic c.op"})
    existing["c.half"] = "DESCRIBE on topic c.half"
    describe, write = ("DESCRIBE on topic b.half", False), ("WRITE on topic c.op", False)
    assert _described("b.check", "c.op") == {"b.check": describe, "c.op": write}


class Brokers:
    """A cluster whose first brokers take requests and answer none, and a clock."""

    def __init__(self) -> None:
        self.silent = 0
        self.now = 1_000.0
        self.refreshed = 0

    def describe(self, _admin: AdminClient, names: Sequence[str], timeout: float, *, writing: bool) -> object:
        """Answer, unless the broker that is asked does not."""
        assert not writing
        if self.silent:
            self.silent -= 1
            self.now += timeout
            raise KafkaUnreachable("no answer")
        return dict.fromkeys(names)

    def refresh(self, _admin: AdminClient) -> None:
        self.refreshed += 1


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(admin, "_describe", made.describe)
    monkeypatch.setattr(admin, "refresh_brokers", made.refresh)
    monkeypatch.setattr("outbox._kafka.admin.time.monotonic", lambda: made.now)
    return made


def test_another_broker_is_asked_where_one_takes_a_request_and_answers_none(brokers: Brokers) -> None:
    """As one that is being stopped (R79): the owners of a process, or the first publication, wait for the answer."""
    brokers.silent, found = 1, dict[str, TopicDescription]()
    with suppress(KafkaUnreachable):
        found = describe_topics(CLIENT, ["a"], 5.0)
    assert set(found) == {"a"}
    assert brokers.now == 1_002.0
    assert brokers.refreshed == 1


def test_a_slow_broker_is_given_more_time(brokers: Brokers) -> None:
    brokers.silent = 2
    assert set(describe_topics(CLIENT, ["a"], 30.0)) == {"a"}
    assert brokers.now == 1_006.0


def test_a_cluster_that_answers_nothing_is_not_waited_for_for_ever(brokers: Brokers) -> None:
    brokers.silent = 100
    with pytest.raises(KafkaUnreachable):
        describe_topics(CLIENT, ["a"], 10.0)
    assert brokers.now == 1_010.0


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
    ],
)
def test_request_without_an_answer_leaves_kafka_unreachable(code: int) -> None:
    assert isinstance(refused("describing topic a", KafkaException(KafkaError(code))), KafkaUnreachable)


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_CONFIG])
def test_refusal_of_a_broker_is_an_answer(code: int) -> None:
    assert not isinstance(refused("describing topic a", KafkaException(KafkaError(code))), KafkaUnreachable)
