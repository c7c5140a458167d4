"""Token providers for SASL OAUTHBEARER: the property `oauth_cb` as the name of a function, as a file may have it."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from outbox.errors import ConfigurationError

log = logging.getLogger("outbox")

PROPERTY = "oauth_cb"

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)

Provider = Callable[[str], Any]
"""Takes `sasl.oauthbearer.config`; returns the token and when it expires (s since 1970), as confluent-kafka has it."""


def with_provider(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties for Kafka with a function as `oauth_cb`, where they have the name of one."""
    name = kafka.get(PROPERTY)
    return {**kafka, PROPERTY: load_provider(name)} if isinstance(name, str) else dict(kafka)


def load_provider(name: str) -> Provider:
    """Return the function of a name `package.module:function`.

    What it returns is checked at each call. Its failures are logged by type, because their text may hold a secret;
    the client then asks it again.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"Property {PROPERTY!r} is not the name of a function. Write it as package.module:function."
        )
    import pkgutil  # noqa: PLC0415 - few name one

    try:
        found = pkgutil.resolve_name(name)
    except Exception as error:  # the module is the user's, and may raise anything
        why = str(error) if isinstance(error, ImportError | AttributeError) else type(error).__name__
        raise ConfigurationError(
            f"The token provider {name} (oauth_cb) cannot be loaded: {why}. "
            "Install its package where this process runs, or correct the name."
        ) from error
    if not callable(found):
        raise ConfigurationError(f"The token provider {name} (oauth_cb) is no function. Name one.")
    return _Checked(name, found)


class _Checked:
    """A token provider whose failures are logged."""

    def __init__(self, name: str, provider: Provider) -> None:
        self._name = name
        self._provider = provider

    def __call__(self, config: str) -> tuple[Any, ...]:
        """Return token, expiry and what else the provider returns."""
        try:
            return _answer(self._provider(config))
        except Exception as error:
            problem = str(error) if isinstance(error, _WrongAnswerError) else type(error).__name__
            log.warning("Token provider %s failed: %s", self._name, problem)
            raise


class _WrongAnswerError(TypeError):
    """A provider returned no token; the text contains nothing of what it returned."""


def _answer(found: Any) -> tuple[Any, ...]:
    match found:
        case (str() as token, int() | float(), *_) if isinstance(found, tuple) and token:
            return found
    raise _WrongAnswerError("it must return a tuple of the token and the time at which it expires, in s since 1970")
