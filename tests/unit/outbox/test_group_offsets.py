"""Committed offsets of a group that Kafka does not show: the request only times out, and the right is named."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox._kafka import groups
from outbox._kafka.admin import end_offsets
from outbox._kafka.groups import committed_checkpoints
from outbox.errors import ConfigurationError, KafkaUnreachable
from relay.recovery import hanging_checkpoint
from relay.recovery.hanging_checkpoint import HeldBackError, why_unreadable

PLACE = ("shop.half", 0)
SILENT = KafkaException(KafkaError(KafkaError._TIMED_OUT))
REFUSED = KafkaError.GROUP_AUTHORIZATION_FAILED
DOWN = KafkaError._ALL_BROKERS_DOWN


class _Silent:
    def __init__(self, *events: int) -> None:
        self._events = list(events)
        self.asked = 0

    def committed(self, _places: Any, _timeout: float) -> Any:
        self.asked += 1
        raise SILENT

    def poll(self, _timeout: float) -> Any:
        """Report an error, if there is one more."""
        if not self._events:
            return None
        error = KafkaError(self._events.pop(0))
        return SimpleNamespace(error=lambda: error)

    def close(self) -> None:
        """Nothing is open."""


def _use(monkeypatch: pytest.MonkeyPatch, consumer: _Silent) -> None:
    for module in (groups, hanging_checkpoint):
        monkeypatch.setattr(module, "Consumer", lambda _properties: consumer)


def test_the_right_on_the_group_is_named_at_the_first_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = _Silent(DOWN, REFUSED)
    _use(monkeypatch, consumer)
    with pytest.raises(ConfigurationError, match=r"lacks the right DESCRIBE on group shop-table\.a") as caught:
        committed_checkpoints({}, "shop-table.a", [PLACE])
    assert not isinstance(caught.value, KafkaUnreachable)
    assert consumer.asked == 1


def test_silent_cluster_is_asked_until_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = _Silent(DOWN)
    _use(monkeypatch, consumer)
    monkeypatch.setattr(groups, "GROUP_TIMEOUT", 0.05)
    monkeypatch.setattr("outbox._kafka.admin.Causes.explain", lambda *_given: None)
    with pytest.raises(KafkaUnreachable, match="Kafka does not answer"):
        committed_checkpoints({}, "shop-table.a", [PLACE])
    assert consumer.asked > 1


@pytest.mark.parametrize(
    ("event", "reason"),
    [(REFUSED, "the relay lacks the right READ on group shop-table.a. Grant it."), (DOWN, SILENT.args[0].str())],
)
def test_a_relay_names_the_right_that_it_lacks(monkeypatch: pytest.MonkeyPatch, event: int, reason: str) -> None:
    _use(monkeypatch, _Silent(event))
    why = why_unreadable(SILENT, {}, "shop-table.a", PLACE)
    assert str(why) == reason
    assert not isinstance(why, HeldBackError)


@pytest.mark.parametrize(("offset", "known"), [(7, {"orders": (3, 7)}), (-1, {}), (-1001, {})])
def test_an_end_below_0_is_no_answer(offset: int, known: dict[str, tuple[int, ...]]) -> None:
    """The partition's leader may have changed; an owner would else look for what it left open at a wrong place."""
    ends: list[Future[Any]] = [Future(), Future()]
    for future, at in zip(ends, (3, offset), strict=True):
        future.set_result(SimpleNamespace(offset=at))
    admin = Mock(**{"list_offsets.side_effect": lambda asked, **_: dict(zip(asked, ends, strict=True))})
    assert end_offsets(admin, {"orders": 2}, stable=True) == known
