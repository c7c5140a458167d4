"""When the next batch leaves: after a rest in proportion to the last one, or as soon as it is full."""

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Message

from relay.delivery.rules.volume import REST_SECONDS_MAX, rest
from relay.half.serving.intake import Arrivals


@pytest.mark.parametrize(
    ("messages", "owners", "ms"), [(0, 4, 0), (1, 64, 0), (3, 1, 1), (2, 4, 2), (11, 4, 20), (9_999, 4, 20)]
)
def test_a_rest_is_in_proportion_to_the_batch_before_it(messages: int, owners: int, ms: float) -> None:
    assert rest(messages, owners) == pytest.approx(ms / 1_000)
    assert rest(messages, owners) <= REST_SECONDS_MAX


def _records(*offsets: int) -> list[Message]:
    return [Message("half", 0, offset, None, b"", [], None, (2, 0)) for offset in offsets]


@pytest.mark.parametrize("come", [lambda arrivals: arrivals.feed(_records(0, 1), _records(0)), Arrivals.stop])
def test_a_rest_ends_early_for_a_full_batch_and_for_a_stop(come: Callable[[Arrivals], None]) -> None:
    arrivals, rested = Arrivals(), threading.Event()

    def rest() -> None:
        arrivals.wait(60, enough=3)
        rested.set()

    threading.Thread(target=rest, daemon=True).start()
    come(arrivals)
    assert rested.wait(30)


def test_what_comes_during_a_rest_is_collected() -> None:
    arrivals = Arrivals()
    arrivals.feed(_records(0), [])
    threading.Timer(0.01, arrivals.feed, [_records(1), []]).start()
    arrivals.wait(0.2, enough=3)
    assert arrivals.sizes() == (2, 0, 0)
