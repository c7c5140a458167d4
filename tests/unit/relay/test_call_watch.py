"""A call to Kafka that takes long is logged once, with its name; one that makes progress does not take long (R79)."""

from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

import relay.delivery.call_watch
import relay.delivery.producer
from outbox._service.channels.channel_context import in_channel
from relay.delivery.call_watch import LONG_SECONDS, calling, look
from relay.delivery.producer import SETTINGS, BatchProducer, DeliveryError
from tests.unit.relay.test_partition_worker import Clock

CHANNEL = "outbox"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    for module in (relay.delivery.call_watch, relay.delivery.producer):
        monkeypatch.setattr(module, "time", made)
    with in_channel(CHANNEL):
        yield made


def _logged(channel: str = CHANNEL) -> list[str]:
    with capture_logs() as lines:
        look(channel)
    return [line["call"] for line in lines]


def test_a_call_that_takes_long_is_logged_once(clock: Clock) -> None:
    with calling("waiting"):
        assert not _logged()
        clock.now += LONG_SECONDS
        assert not _logged("another channel")
        assert _logged() == ["waiting"]
        assert not _logged()
    with calling("waiting"):
        clock.now += LONG_SECONDS
        assert _logged() == ["waiting"]
    assert not _logged()


def test_the_innermost_call_is_named(clock: Clock) -> None:
    with calling("taking over"):
        with calling("asking"):
            clock.now += LONG_SECONDS
            assert _logged() == ["asking"]
        assert _logged() == ["taking over"]


def test_a_call_that_makes_progress_does_not_take_long(clock: Clock) -> None:
    with calling("flushing") as call:
        for _ in range(3):
            clock.now += LONG_SECONDS - 1
            assert not _logged()
            call.progressed()


def _flush(clock: Clock, monkeypatch: pytest.MonkeyPatch, left: Iterator[int], lines: list[str]) -> None:
    """Flush a producer that has so many messages left after each look; note what is logged meanwhile."""

    def flush(seconds: float) -> int:
        clock.now += seconds
        lines.extend(_logged())
        return next(left)

    monkeypatch.setattr(relay.delivery.producer, "Producer", Mock(return_value=Mock(flush=flush)))
    BatchProducer(SETTINGS).flush()


def test_a_large_batch_on_a_slow_line_is_no_long_call(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    _flush(clock, monkeypatch, iter(range(12, -1, -1)), lines)
    assert not lines


def test_a_flush_without_progress_is_logged_and_ends(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    began = clock.now
    with pytest.raises(DeliveryError, match="3 messages were not acknowledged within 15 s"):
        _flush(clock, monkeypatch, iter([3] * 100), lines)
    assert clock.now - began == 15
    assert lines == ["delivering a message"]
