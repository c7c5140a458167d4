"""Record batches are small while a small topic is written to, and no longer."""

from __future__ import annotations

from functools import partial

import pytest

import relay.delivery.producer
import relay.delivery.transactional_delivery
from relay.delivery.rules.volume import OVERHEAD, WINDOW_SECONDS, BatchSize
from relay.delivery.transactional_delivery import TransactionalDelivery
from tests.support.transaction_model import Coordinator, Producer

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
