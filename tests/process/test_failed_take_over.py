"""A producer that could not take over leaves no threads behind, however often a relay tries again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import relay.kafka.transactional_delivery
from relay.kafka.producer import SETTINGS, DeliveryError
from relay.kafka.transactional_delivery import take_over

NO_KAFKA = {**SETTINGS, "bootstrap.servers": "127.0.0.1:1", "transactional.id": "outbox-relay-0"}


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Without the garbage collector, which comes late to objects as old as a relay's."""
    gc.disable()
    yield
    gc.enable()


def _client_threads() -> set[str]:
    """Ids of the threads of all clients; those of other tests may end meanwhile."""
    return {path.parent.name for path in Path("/proc/self/task").glob("*/comm") if _name(path).startswith("rdk:")}


def _name(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


@pytest.mark.usefixtures("no_collection")
def test_a_producer_that_cannot_take_over_ends_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay.kafka.transactional_delivery, "TAKE_OVER_SECONDS", 0.2)
    before = _client_threads()
    for _ in range(2):
        with pytest.raises(DeliveryError, match="taking over failed"):
            take_over(NO_KAFKA)
        assert _client_threads() <= before
