"""Topics to which messages go: which of them are of a channel, by whether a sibling exists."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient

from outbox._kafka import admin
from outbox._kafka.admin import describe_targets
from outbox._rules.topic_description import TopicDescription

CLIENT = AdminClient({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})


@pytest.fixture
def existing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Topics that exist, by name, with the right that this client lacks."""
    made: dict[str, str] = {}

    def describe(_admin: AdminClient, names: Sequence[str], _timeout: float, *, writing: bool) -> object:
        assert writing
        return {name: TopicDescription(name, name, 1, 1, {}, made[name]) for name in names if name in made}

    monkeypatch.setattr(admin, "describe_topics", describe)
    return made


def _described(*names: str) -> dict[str, tuple[str, bool]]:
    found = describe_targets(CLIENT, names, writing=True)
    return {name: (topic.lacks, topic.of_channel) for name, topic in found.items()}


def test_topic_is_of_channel_if_sibling_exists(existing: dict[str, str]) -> None:
    existing.update({"a.check": "", "b.check": "", "b.half": "", "orders": ""})
    assert _described("a.check", "b.check", "orders", "missing") == {
        "a.check": ("", False),
        "b.check": ("", True),
        "orders": ("", False),
    }


def test_sibling_without_write_right_exists(existing: dict[str, str]) -> None:
    existing.update({"b.half": "WRITE on topic b.half", "b.op": "DESCRIBE_CONFIGS on topic b.op"})
    assert _described("b.half", "b.op") == {
        "b.half": ("WRITE on topic b.half", True),
        "b.op": ("DESCRIBE_CONFIGS on topic b.op", True),
    }


def test_hidden_sibling_closes_the_topic(existing: dict[str, str]) -> None:
    existing.update({"b.check": "", "b.half": "DESCRIBE on topic b.half", "c.op": "WRITE on topic c.op"})
    existing["c.half"] = "DESCRIBE on topic c.half"
    assert _described("b.check", "c.op") == {
        "b.check": ("DESCRIBE on topic b.half", False),
        "c.op": ("WRITE on topic c.op", False),
    }
