"""The first step of a take-over: nobody waits for a half partition whose former transaction has no end yet."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from relay.delivery.producer import DeliveryError
from relay.delivery.transactional_delivery import Delivery
from relay.half.serving.take_over import Fencing

SECONDS = 10.0


class Kafka:
    """Initialises producers; that of half partition 1 waits."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.goes_on = threading.Event()
        self.delivery = Mock(spec=Delivery)

    def fence(self, number: int) -> Delivery:
        self.made.append(number)
        if number == 1:
            self.goes_on.wait(SECONDS)
        if number == 2:
            raise DeliveryError("Kafka does not answer")
        return self.delivery


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


def test_nobody_waits_for_one_that_kafka_lets_wait(kafka: Kafka) -> None:
    fencing = Fencing(kafka.fence)
    fencing.begin([0, 1])
    found: list[tuple[int, Delivery | Exception]] = []
    while not found:
        found += fencing.take_done(0.01)
    assert found == [(0, kafka.delivery)]
    fencing.begin([1])
    assert sorted(kafka.made) == [0, 1], "it is under way"
    kafka.goes_on.set()
    assert [number for number, _ in fencing.take_done(SECONDS)] == [1]
    assert not list(fencing.take_done())


def test_failure_is_told_and_tried_again(kafka: Kafka) -> None:
    fencing = Fencing(kafka.fence)
    for _ in range(2):
        fencing.begin([2])
        ((_, error),) = fencing.take_done(SECONDS)
        assert isinstance(error, DeliveryError)
    assert kafka.made == [2, 2]


def test_no_producer_comes_after_its_half_partition_was_given_up(kafka: Kafka) -> None:
    """It would fence the next owner."""
    fencing = Fencing(kafka.fence)
    fencing.begin([0, 1, 2])
    threading.Timer(0.1, kafka.goes_on.set).start()
    fencing.drop([1, 2, 3])
    kafka.delivery.close.assert_called_once_with()
    fencing.drop_all()
    assert kafka.delivery.close.call_count == 2
    assert not list(fencing.take_done())
