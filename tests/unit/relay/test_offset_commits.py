"""Checkpoints of at-least-once delivery: who sends them, when they count, and what becomes of those that fail."""

from collections.abc import Sequence
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relay.delivery.producer import DeliveryError
from relay.half.kafka import offset_commits
from relay.half.kafka.offset_commits import OffsetCommits

RETRIABLE = KafkaError(KafkaError.NOT_COORDINATOR, retriable=True)
LOST = KafkaError(KafkaError.ILLEGAL_GENERATION)
NUMBER = 3


def offsets(half: int, op: int = 0) -> list[TopicPartition]:
    return [TopicPartition("half", NUMBER, half, "h"), TopicPartition("op", NUMBER, op, "o")]


class Served:
    """A half partition that is served, and the consumer that commits for it."""

    def __init__(self) -> None:
        self.commits = OffsetCommits()
        self.commit = self.commits.serve(NUMBER)
        self.consumer = Mock(spec=Consumer)

    def send(self, *committed: Sequence[TopicPartition]) -> None:
        for one in committed:
            self.commit(one)
        self.commits.send(self.consumer)

    def finish(self) -> None:
        self.commits.finish(self.consumer, [NUMBER])

    @property
    def sent(self) -> list[tuple[list[int], bool]]:
        """The offsets of each commit, and whether nobody waited for it."""
        calls = [call.kwargs for call in self.consumer.commit.call_args_list]
        return [([place.offset for place in call["offsets"]], call["asynchronous"]) for call in calls]


@pytest.fixture
def served() -> Served:
    return Served()


def test_only_the_newest_offsets_are_sent_and_once(served: Served) -> None:
    served.send(offsets(1), offsets(2))
    served.send()
    assert served.sent == [([2, 0], True)]


def test_what_is_acknowledged_is_not_committed_again_at_the_end(served: Served) -> None:
    served.send(offsets(1))
    served.commits.acknowledged(None, offsets(1))
    served.finish()
    assert served.sent == [([1, 0], True)]


def test_what_is_not_acknowledged_is_committed_at_the_end_and_waited_for(served: Served) -> None:
    served.send(offsets(1, 1))
    served.commit(offsets(2, 2))
    served.commits.acknowledged(None, offsets(1, 1))
    served.finish()
    assert served.sent == [([1, 1], True), ([2, 2], False)]


def test_a_commit_that_may_be_tried_again_is_and_with_the_newest_offsets(served: Served) -> None:
    served.send(offsets(1))
    served.commits.acknowledged(RETRIABLE, offsets(1))
    served.send(offsets(2))
    assert served.sent == [([1, 0], True), ([2, 0], True)]
    assert served.commits.failure(NUMBER) is None


def test_one_that_is_tried_for_too_long_has_failed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "PATIENCE_SECONDS", 0.0)
    served.send(offsets(1))
    served.commits.acknowledged(RETRIABLE, offsets(1))
    failure = served.commits.failure(NUMBER)
    assert failure is not None
    assert not failure.fenced


def test_a_refusal_is_told_until_the_partition_is_given_up(served: Served) -> None:
    served.consumer.commit.side_effect = KafkaException(LOST)
    served.send(offsets(1))
    failure = served.commits.failure(NUMBER)
    assert failure is not None
    assert failure.fenced
    served.finish()
    assert served.commits.failure(NUMBER) is None


def test_an_error_of_one_place_is_one_of_its_partition_alone(served: Served) -> None:
    served.commits.serve(NUMBER + 1)([TopicPartition("half", NUMBER + 1, 7)])
    served.send(offsets(1))
    refused = Mock(spec=TopicPartition, topic="op", partition=NUMBER, offset=0, metadata="o", error=LOST)
    served.commits.acknowledged(None, [offsets(1)[0], refused])
    assert served.commits.failure(NUMBER) is not None
    assert served.commits.failure(NUMBER + 1) is None


def test_who_is_not_served_any_more_commits_nothing(served: Served) -> None:
    """A worker that did not end in time would move its successor's checkpoint."""
    served.finish()
    with pytest.raises(DeliveryError, match="no longer serves half partition"):
        served.commit(offsets(1))


def test_a_last_commit_that_fails_is_no_failure_of_the_service(served: Served) -> None:
    served.consumer.commit.side_effect = KafkaException(LOST)
    served.commit(offsets(1))
    served.finish()
    assert served.sent == [([1, 0], False)]
