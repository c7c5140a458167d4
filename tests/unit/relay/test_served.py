"""The half partitions of a relay: their take-over, and what was not foreseen halts the one that it is about (R81)."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from structlog.testing import capture_logs

from relay.delivery.at_least_once_delivery import Delivery
from relay.delivery.producer import DeliveryError
from relay.delivery.transactional_delivery import TransactionalDelivery
from relay.half.kafka.offset_commits import OffsetCommits
from relay.half.serving.commits import GroupMetadata
from relay.half.serving.served import ServedPartitions
from relay.half.serving.take_over import Fencing

BUG = LookupError("a bug")


@pytest.fixture
def take_over() -> MagicMock:
    made = MagicMock()
    made.restore.return_value = MagicMock(), []
    made.worker.side_effect = lambda *_: MagicMock(partition=0, **{"is_alive.return_value": True})
    return made


@pytest.fixture
def served(take_over: MagicMock) -> ServedPartitions:
    intake: Any = MagicMock()
    more = intake, GroupMetadata(), OffsetCommits(), MagicMock(), MagicMock()
    return ServedPartitions(take_over, MagicMock(), *more, stopping=lambda: False)


def failing(number: int) -> Any:
    return SimpleNamespace(partition=number, failure=BUG, is_alive=lambda: False, stop=lambda _seconds: None)


def raised_by(step: Callable[[], object]) -> Exception | None:
    """Return what a step raises, and would end the relay; None: nothing."""
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the test says that there is none
        return error
    return None


def test_a_worker_that_fails_unforeseen_halts_its_half_partition(served: ServedPartitions) -> None:
    served.workers |= {0: failing(0), 1: MagicMock(partition=1, ready=True, **{"is_alive.return_value": True})}
    with capture_logs() as logs:
        assert raised_by(served.replace_failed) is None
    assert list(served.workers) == [1]
    why = "partition 0 is halted: unforeseen error, its traceback is in the log: LookupError: a bug"
    assert served.not_ready() == why
    assert served.ownership.waiting() == [0], "it is tried again"
    assert [line["exc_info"] for line in logs if line["event"] == "Unforeseen error of a partition"] == [BUG]


@pytest.mark.parametrize("step", ["fence", "restore", "worker"])
def test_a_take_over_that_fails_unforeseen_halts_its_half_partition(
    served: ServedPartitions, take_over: MagicMock, step: str
) -> None:
    steps = getattr(take_over, step)
    usual = steps.side_effect or (lambda *_: steps.return_value)
    failed: list[int] = []

    def fail_once(*arguments: Any) -> Any:
        if failed:
            return usual(*arguments)
        failed.append(0)
        raise BUG

    steps.side_effect = fail_once
    assert raised_by(lambda: served.take_over([0], assign=True)) is None
    served.take_over([1], assign=True)
    assert (len(served.halts), len(served.workers)) == (1, 1)
    assert "LookupError: a bug" in (served.halts.why() or "")


SECONDS = 10.0


class Kafka:
    """Initialises producers; that of half partition 1 waits."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.goes_on = threading.Event()
        self.delivery = Mock(spec=TransactionalDelivery)

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
