"""Batches follow what the connection carries; record batches are small while a small topic is written to."""

from collections.abc import Callable
from functools import partial

import pytest

import relay.delivery.producer
import relay.delivery.transactional_delivery
from relay.delivery.rules.volume import OVERHEAD, PATIENCE_MAX, WINDOW_SECONDS, BatchPolicy, BatchSize, Volume
from relay.delivery.transactional_delivery import TRANSACTION_TIMEOUT_MS, TransactionalDelivery
from tests.support.transaction_model import Coordinator, Producer
from tests.torture.watches import STALL_SECONDS

POLICY = BatchPolicy(messages=5_000, bytes=16_000_000)
REQUEST_SECONDS = 5.0
TIME_OUT_SECONDS = 10.0
MESSAGE_BYTES = 10_000


def volume() -> Volume:
    return Volume(POLICY, REQUEST_SECONDS)


def drain(found: Volume, messages: int, seconds: Callable[[int], float]) -> int:
    """Deliver a backlog over a line that needs so many seconds for so many bytes; the number of time-outs."""
    time_outs = 0
    while messages:
        batch = min(messages, found.limit.messages, max(found.limit.bytes // MESSAGE_BYTES, 1))
        took = seconds(batch * MESSAGE_BYTES)
        if took < TIME_OUT_SECONDS:
            found.written(batch, batch * MESSAGE_BYTES, took)
            messages -= batch
            continue
        time_outs += 1
        assert time_outs < 20, "it is never drained"
        found.timed_out(batch, batch * MESSAGE_BYTES, is_single=batch == 1)
    return time_outs


@pytest.mark.parametrize("bytes_per_second", [700_000, 200_000, 10_000])
def test_backlog_drains_over_a_thin_line(bytes_per_second: int) -> None:
    """The limit is found by halving, and then kept."""
    assert drain(volume(), 2_000, lambda size: size / bytes_per_second) < 12


def test_batch_that_timed_out_is_halved() -> None:
    found = volume()
    found.timed_out(400, 1_000_000, is_single=False)
    assert (found.limit.messages, found.limit.bytes) == (200, 500_000)
    assert found.is_reduced


def test_quick_large_batches_restore_the_limit() -> None:
    found = volume()
    found.timed_out(2, 1_000, is_single=False)
    while found.is_reduced:
        before = found.limit
        found.written(before.messages, before.bytes, REQUEST_SECONDS / 2 - 0.1)
        assert before.messages < found.limit.messages or before.bytes < found.limit.bytes
    assert found.limit == POLICY


@pytest.mark.parametrize(
    ("messages", "seconds"), [(10, 0.1), (200, REQUEST_SECONDS / 2)], ids=["small batch", "slow batch"]
)
def test_batch_without_evidence_leaves_the_limit(messages: int, seconds: float) -> None:
    found = volume()
    found.timed_out(400, 1_000_000, is_single=False)
    before = found.limit
    found.written(messages, 1_000, seconds)
    assert found.limit == before


def test_limit_never_falls_below_one_message() -> None:
    found = volume()
    for _ in range(20):
        found.timed_out(1, 1, is_single=True)
    assert (found.limit.messages, found.limit.bytes) == (1, 1)


def test_single_transaction_gets_longer_time_outs() -> None:
    """It cannot be halved; the next commit ends that."""
    found = volume()
    found.timed_out(1, 20_000_000, is_single=False)
    assert found.patience == 1
    for _ in range(5):
        found.timed_out(1, 20_000_000, is_single=True)
    assert found.patience == PATIENCE_MAX
    assert PATIENCE_MAX * TRANSACTION_TIMEOUT_MS / 1000 + 10.0 < STALL_SECONDS, "brokers look every 10 s"
    found.written(1, 20_000_000, 30.0)
    assert found.patience == 1


LARGEST, SMALL = 1_000_000, 2_000
ROOM = 10_000_000


def test_batches_are_small_from_the_first_small_topic_on() -> None:
    found = BatchSize(LARGEST, 0.0)
    assert found.for_topics(ROOM, 0.0) == LARGEST
    assert found.for_topics(SMALL, 0.1) == SMALL - OVERHEAD
    assert found.for_topics(ROOM, 0.2) == SMALL - OVERHEAD


def test_batches_grow_after_a_window_without_the_topic() -> None:
    found = BatchSize(LARGEST, 0.0)
    found.for_topics(SMALL, 1.0)
    sizes = [found.for_topics(ROOM, float(second)) for second in range(2, 2 + 2 * int(WINDOW_SECONDS))]
    assert sizes[0] == SMALL - OVERHEAD
    assert sizes[-1] == LARGEST


def test_batches_stay_small_while_the_topic_recurs() -> None:
    """Else each of its messages would cost two producers."""
    found = BatchSize(LARGEST, 0.0)
    for second in range(100):
        found.for_topics(ROOM, float(second))
        size = found.for_topics(SMALL if second % 7 == 0 else ROOM, second + 0.5)
        assert size == SMALL - OVERHEAD


def test_batches_grow_only_to_the_smallest_topic_left() -> None:
    found, middle = BatchSize(LARGEST, 0.0), 50_000
    found.for_topics(SMALL, 0.0)
    for second in range(1, 5 * int(WINDOW_SECONDS)):
        size = found.for_topics(middle if second % 2 else ROOM, float(second))
    assert size == middle - OVERHEAD


def test_tiny_topic_leaves_one_byte() -> None:
    assert BatchSize(LARGEST, 0.0).for_topics(1, 0.0) == 1


def test_delivery_recovers_without_a_small_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fresh producers in all: one for the small topic, and one when it is no longer written to."""
    coordinator = Coordinator()
    monkeypatch.setattr(relay.delivery.producer, "Producer", partial(Producer, coordinator))
    monkeypatch.setattr(relay.delivery.transactional_delivery, "time", coordinator)
    delivery = TransactionalDelivery({}, "outbox-relay-0")
    delivery.limit_batches(SMALL)
    assert delivery._config["batch.size"] == SMALL - OVERHEAD
    for _ in range(30):
        coordinator.sleep(1.0)
        delivery.limit_batches(ROOM)
    assert delivery._config["batch.size"] == LARGEST
    assert delivery.take_overs == 3
