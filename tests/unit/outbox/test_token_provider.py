"""Token providers by name: `oauth_cb` in a file or in the environment."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox._kafka.admin import checked_properties
from outbox._security.token_provider import load_provider
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.settings import HalfSettings
from relay.settings import RelaySettings

NAME = "a_provider:provide"
TOKEN = "a.secret.token"  # noqa: S105 - planted
SERVERS = "127.0.0.1:9"


@pytest.fixture
def providing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    module = ModuleType("a_provider")
    monkeypatch.setitem(sys.modules, "a_provider", module)

    def put(found: Any) -> None:
        module.provide = found  # type: ignore[attr-defined]  # a module made here

    return put


@pytest.mark.parametrize("answer", [(TOKEN, 1.5), (TOKEN, 2, "orders", {"extension": "x"})])
def test_provider_is_called_by_library_and_services(providing: Callable[[Any], None], answer: tuple[Any, ...]) -> None:
    asked: list[str] = []

    def provide(config: str) -> tuple[Any, ...]:
        asked.append(config)
        return answer

    providing(provide)
    kafka = json.dumps({"oauth_cb": NAME})
    environ = {"OUTBOX_SERVICE": "orders", "OUTBOX_BOOTSTRAP_SERVERS": SERVERS}
    of_library = HalfSettings.from_env({**environ, "OUTBOX_KAFKA": kafka}).kafka
    service = RelaySettings(bootstrap_servers=SERVERS, kafka=kafka)
    for properties in (of_library, service.connection(), service.polled_connection()):
        assert properties["oauth_cb"]("scope=kafka") == answer
    assert asked == ["scope=kafka"] * 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("provide", "Write it as package.module:function"),
        (f"{TOKEN}/+", "Write it as package.module:function"),
        ("no_such_package.tokens:provide", "No module named 'no_such_package'. Install its package"),
        ("json:no_such_function", "no_such_function"),
        ("json:__name__", "is no function. Name one."),
    ],
)
def test_provider_that_cannot_be_loaded_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        load_provider(name)
    assert TOKEN not in str(refused.value)


def test_module_that_fails_is_named_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_failing_provider.py").write_text(f"raise RuntimeError('{TOKEN}')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be loaded: RuntimeError") as refused:
        load_provider("a_failing_provider:provide")
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("answer", [None, TOKEN, (TOKEN,), (TOKEN, "soon"), ("", 1.0), [TOKEN, 1.0]])
def test_wrong_answer_is_logged_without_the_token(
    providing: Callable[[Any], None], caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    providing(lambda _: answer)
    with pytest.raises(TypeError, match="must return a tuple of the token and the time"):
        load_provider(NAME)("")
    assert "Token provider a_provider:provide failed: it must return a tuple" in caplog.text
    assert TOKEN not in caplog.text


def test_failure_is_logged_without_its_text(providing: Callable[[Any], None], caplog: pytest.LogCaptureFixture) -> None:
    def provide(_: str) -> None:
        raise PermissionError(TOKEN)

    providing(provide)
    with caplog.at_level(logging.WARNING), pytest.raises(PermissionError):
        load_provider(NAME)("")
    assert "Token provider a_provider:provide failed: PermissionError" in caplog.text
    assert TOKEN not in caplog.text


def test_client_without_a_token_is_named() -> None:
    """As confluent-kafka raises it, 10 s after the client was to be made."""
    cause = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set within 10 seconds timeout")
    with pytest.raises(KafkaUnreachable, match="oauth_cb gave no token") as unreachable, checked_properties():
        raise KafkaException(cause)
    assert "Look at its failures in the log" in str(unreachable.value)
