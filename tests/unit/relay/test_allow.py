"""The allow-list: who may write where, and what a list may say."""

import pytest

from outbox.errors import ConfigurationError
from relay.delivery.rules.allow_list import EVERYTHING, AllowList
from relay.settings import RelaySettings, require_allow_list

LIST = AllowList({"orders": ("orders", "shop.*"), "orders-*": ("archive",), "orders-eu*": ("eu",), "admin": ("*",)})


@pytest.mark.parametrize(
    ("service", "topic", "allowed"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "shop.stock", True),
        ("orders", "shop", False),
        ("orders", "archive", False),
        ("orders-us", "archive", True),
        ("orders-eu-1", "eu", True),
        ("orders-eu-1", "archive", False),
        ("admin", "anything", True),
        ("stranger", "orders", False),
    ],
)
def test_the_pattern_that_is_closest_to_a_service_counts_alone(service: str, topic: str, *, allowed: bool) -> None:
    assert LIST.allows(service, topic) == allowed


def test_without_a_list_services_may_write_everywhere_and_with_an_empty_one_none() -> None:
    assert EVERYTHING.allows("orders", "any")
    assert not AllowList({}).allows("orders", "any")


PLATFORM = AllowList(
    {"orders": ("*", "_schemas", "connect-*"), "stock": ("stock*", "c*", "stock-b-changelog"), "eu": ("eu-changelog*",)}
)


@pytest.mark.parametrize("topic", ["_schemas", "_", "connect-configs", "app-store-changelog", "app-a-repartition"])
def test_topics_of_other_platforms_are_protected_until_they_are_named(topic: str) -> None:
    assert EVERYTHING.protects("orders", topic)
    assert AllowList({"orders": ("*",)}).protects("orders", topic)
    assert not AllowList({"orders": (topic,)}).protects("orders", topic)
    assert AllowList({"orders": (topic,)}).protects("stock", topic), "another service's entry names nothing for it"


@pytest.mark.parametrize("topic", ["orders", "schemas_", "connect", "connections", "changelog", "a-changelog.b", "a_b"])
def test_other_topics_are_not_protected(topic: str) -> None:
    assert not EVERYTHING.protects("orders", topic)
    assert not AllowList({}).protects("orders", topic)


@pytest.mark.parametrize(
    ("service", "topic", "protected"),
    [
        ("orders", "_schemas", False),
        ("orders", "_schemas2", True),
        ("orders", "connect-status", False),
        ("stock", "connect-status", True),
        ("stock", "stock-a-changelog", True),
        ("stock", "stock-b-changelog", False),
        ("eu", "eu-changelog", False),
    ],
)
def test_only_a_pattern_that_begins_like_such_a_name_names_it(service: str, topic: str, *, protected: bool) -> None:
    assert PLATFORM.protects(service, topic) == protected


def settings(allowed: object) -> RelaySettings:
    return RelaySettings(bootstrap_servers="kafka:9092", allowed_topics=allowed)


def test_the_list_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings({"orders": ["a", "b*"]}).allow_list().allows("orders", "b1")
    monkeypatch.setenv("OUTBOX_BOOTSTRAP_SERVERS", "kafka:9092")
    assert RelaySettings().allow_list().allows("orders", "any")
    monkeypatch.setenv("OUTBOX_ALLOWED_TOPICS", '{"*": ["shop.*"]}')
    found = RelaySettings().allow_list()
    assert (found.allows("orders", "shop.a"), found.allows("orders", "a")) == (True, False)


@pytest.mark.parametrize("pattern", ["", "a*b", "**", "a b", "shop/*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="neither a name nor a prefix"):
        settings({"orders": [pattern]})
    with pytest.raises(ConfigurationError, match="neither a name nor a prefix"):
        settings({pattern: ["orders"]})


def test_production_requires_a_list_and_takes_the_explicit_word() -> None:
    with pytest.raises(ConfigurationError, match=r'list the topics .*, or set allowed_topics = \{ "\*" = \["\*"\] \}'):
        require_allow_list("production", None)
    require_allow_list("development", None)
    require_allow_list("production", {})
    require_allow_list("production", {"*": ("*",)})
