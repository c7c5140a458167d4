"""Checkpoints of at-least-once delivery: who sends them, when they count, and what becomes of those that fail."""

from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relay.delivery.producer import DeliveryError
from relay.half.kafka import offset_commits
from relay.half.kafka.offset_commits import OffsetCommits

RETRIABLE = KafkaError(KafkaError.NOT_COORDINATOR, retriable=True)
LOST = KafkaError(KafkaError.ILLEGAL_GENERATION)
NUMBER = 3
Commit = Callable[[Sequence[TopicPartition]], None]


def offsets(half: int, op: int = 0) -> list[TopicPartition]:
    return [TopicPartition("half", NUMBER, half, "h"), TopicPartition("op", NUMBER, op, "o")]


def sent(consumer: Mock) -> list[tuple[list[int], bool]]:
    """The offsets of each commit, and whether nobody waited for it."""
    calls = [call.kwargs for call in consumer.commit.call_args_list]
    return [([place.offset for place in call["offsets"]], call["asynchronous"]) for call in calls]


@pytest.fixture
def commits() -> OffsetCommits:
    return OffsetCommits()


@pytest.fixture
def commit(commits: OffsetCommits) -> Commit:
    return commits.serve(NUMBER)


@pytest.fixture
def consumer() -> Mock:
    return Mock(spec=Consumer)


def test_only_the_newest_offsets_are_sent_and_once(commits: OffsetCommits, commit: Commit, consumer: Mock) -> None:
    commit(offsets(1))
    commit(offsets(2))
    commits.send(consumer)
    commits.send(consumer)
    assert sent(consumer) == [([2, 0], True)]


def test_what_is_acknowledged_is_not_committed_again_at_the_end(
    commits: OffsetCommits, commit: Commit, consumer: Mock
) -> None:
    commit(offsets(1))
    commits.send(consumer)
    commits.acknowledged(None, offsets(1))
    commits.finish(consumer, [NUMBER])
    assert sent(consumer) == [([1, 0], True)]


def test_what_is_not_acknowledged_is_committed_at_the_end_and_waited_for(
    commits: OffsetCommits, commit: Commit, consumer: Mock
) -> None:
    commit(offsets(1, 1))
    commits.send(consumer)
    commit(offsets(2, 2))
    commits.acknowledged(None, offsets(1, 1))
    commits.finish(consumer, [NUMBER])
    assert sent(consumer) == [([1, 1], True), ([2, 2], False)]


def test_a_commit_that_may_be_tried_again_is_and_with_the_newest_offsets(
    commits: OffsetCommits, commit: Commit, consumer: Mock
) -> None:
    commit(offsets(1))
    commits.send(consumer)
    commits.acknowledged(RETRIABLE, offsets(1))
    commit(offsets(2))
    commits.send(consumer)
    assert sent(consumer) == [([1, 0], True), ([2, 0], True)]
    assert commits.failure(NUMBER) is None


def test_one_that_is_tried_for_too_long_has_failed(
    commits: OffsetCommits, commit: Commit, consumer: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_commits, "PATIENCE_SECONDS", 0.0)
    commit(offsets(1))
    commits.send(consumer)
    commits.acknowledged(RETRIABLE, offsets(1))
    failure = commits.failure(NUMBER)
    assert failure is not None
    assert not failure.fenced


def test_a_refusal_is_told_until_the_partition_is_given_up(
    commits: OffsetCommits, commit: Commit, consumer: Mock
) -> None:
    consumer.commit.side_effect = KafkaException(LOST)
    commit(offsets(1))
    commits.send(consumer)
    failure = commits.failure(NUMBER)
    assert failure is not None
    assert failure.fenced
    commits.finish(consumer, [NUMBER])
    assert commits.failure(NUMBER) is None


def test_an_error_of_one_place_is_one_of_its_partition_alone(
    commits: OffsetCommits, commit: Commit, consumer: Mock
) -> None:
    commits.serve(NUMBER + 1)([TopicPartition("half", NUMBER + 1, 7)])
    commit(offsets(1))
    commits.send(consumer)
    refused = Mock(spec=TopicPartition, topic="op", partition=NUMBER, offset=0, metadata="o", error=LOST)
    commits.acknowledged(None, [offsets(1)[0], refused])
    assert commits.failure(NUMBER) is not None
    assert commits.failure(NUMBER + 1) is None


def test_who_is_not_served_any_more_commits_nothing(commits: OffsetCommits, commit: Commit, consumer: Mock) -> None:
    """A worker that did not end in time would move its successor's checkpoint."""
    commits.finish(consumer, [NUMBER])
    with pytest.raises(DeliveryError, match="no longer serves half partition"):
        commit(offsets(1))


def test_a_last_commit_that_fails_is_no_failure_of_the_service(
    commits: OffsetCommits, commit: Commit, consumer: Mock
) -> None:
    consumer.commit.side_effect = KafkaException(LOST)
    commit(offsets(1))
    commits.finish(consumer, [NUMBER])
    assert sent(consumer) == [([1, 0], False)]
