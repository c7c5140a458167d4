"""Acknowledgements of halves: only one with an offset counts."""

import time

import pytest
from confluent_kafka import KafkaError, Message

from outbox._half.sender import Acks
from outbox._publish.waiting import BLOCKING, Budget
from outbox.errors import PublishFailed


class Kafka:
    def __init__(self) -> None:
        self.answers = 0
        self.silences: list[float] = []

    def answered(self) -> None:
        self.answers += 1

    def unanswered(self, since: float, _cause: str) -> None:
        self.silences.append(since)


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def acks(kafka: Kafka) -> Acks:
    return Acks(kafka)  # type: ignore[arg-type]  # all that is asked of a connection


def message(offset: int) -> Message:
    return Message(topic="outbox.half", partition=0, offset=offset)


def budget(seconds: float = 1.0) -> Budget:
    return Budget(BLOCKING, seconds)


def test_the_offsets_come_in_the_order_in_which_they_were_expected(acks: Acks, kafka: Kafka) -> None:
    first, second = acks.expect(), acks.expect()
    second(None, message(7))
    first(None, message(9))
    assert acks.offsets(budget()) == [9, 7]
    assert (kafka.answers, kafka.silences) == (2, [])


@pytest.mark.parametrize("offset", [-1, -1_001])
def test_an_acknowledgement_without_an_offset_does_not_count(acks: Acks, offset: int) -> None:
    """As librdkafka gives it for DUPLICATE_SEQUENCE_NUMBER (R3)."""
    first, second = acks.expect(), acks.expect()
    first(None, message(7))
    second(None, message(offset))
    with pytest.raises(PublishFailed, match="without an offset"):
        acks.offsets(budget())


def test_one_error_fails_them_all(acks: Acks, kafka: Kafka) -> None:
    first, second = acks.expect(), acks.expect()
    first(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), message(-1))
    second(None, message(7))
    with pytest.raises(PublishFailed, match="NOT_ENOUGH_REPLICAS"):
        acks.offsets(budget())
    assert kafka.silences == [], "a refusal is an answer"


def test_what_does_not_come_in_time_is_not_stored(acks: Acks, kafka: Kafka) -> None:
    began = time.monotonic()
    acks.expect()
    with pytest.raises(PublishFailed, match="in time"):
        acks.offsets(budget(0.01))
    assert [since >= began for since in kafka.silences] == [True]


def test_half_given_up_by_librdkafka_counts_as_silence(acks: Acks, kafka: Kafka) -> None:
    acks.expect()(KafkaError(KafkaError._MSG_TIMED_OUT), message(-1))
    with pytest.raises(PublishFailed, match="MSG_TIMED_OUT"):
        acks.offsets(budget())
    assert len(kafka.silences) == 1


def test_arrive_takes_its_time_from_the_budget(acks: Acks) -> None:
    acks.expect()
    left = budget(0.02)
    assert not acks.arrive(left, 0.5)
    assert left.is_spent


def test_report_of_a_forgotten_half_counts_for_nothing(acks: Acks) -> None:
    """An exception of a signal handler may come between produce() and the note that it succeeded (R47)."""
    first, second = acks.expect(), acks.expect()
    acks.cancel_last()
    first(None, message(7))
    second(None, message(8))
    assert acks.offsets(budget()) == [7]


def test_a_large_transaction_that_kafka_is_at_work_on_is_no_silence(acks: Acks, kafka: Kafka) -> None:
    first, _ = acks.expect(), acks.expect()
    first(None, message(1))
    with pytest.raises(PublishFailed, match="did not acknowledge 2"):
        acks.offsets(budget(0.0))
    assert kafka.silences == []
    acks.expect()
    with pytest.raises(PublishFailed):
        acks.offsets(budget(0.0))
    assert len(kafka.silences) == 1
