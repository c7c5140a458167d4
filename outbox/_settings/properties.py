"""Properties for Kafka that a user gives: those that would break the guarantee, secrets in files, token providers."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from outbox._security.secret_files import with_secrets
from outbox._security.token_provider import with_provider
from outbox.errors import ConfigurationError

_TOPIC_PREFIX = "topic."
"""librdkafka also accepts each topic property with this prefix, and prefers it to the bare name."""


def usable_properties(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties as a client takes them: with the secrets of files, and the token provider that is named."""
    return with_provider(with_secrets(kafka))


def refuse_properties(
    kafka: Mapping[str, Any], ours: Mapping[str, str], agreed: Mapping[str, Collection[str]] = MappingProxyType({})
) -> None:
    """Refuse librdkafka properties that would break the guarantee, under any of their names.

    Args:
        ours: Properties that the application must not set, each with the reason.
        agreed: Values of such properties that are accepted nevertheless.
    """
    for given, value in kafka.items():
        if not isinstance(given, str):
            raise ConfigurationError("A name in kafka is not a string. Use the names of librdkafka properties.")
        name = given.removeprefix(_TOPIC_PREFIX)
        reason = _always_refused(given) or ours.get(name)
        if reason is not None and str(value).lower() not in agreed.get(name, ()):
            raise ConfigurationError(f"Property {given!r} cannot be set: {reason}.")


def _always_refused(name: str) -> str | None:
    """Return why a property is refused by the library and by every service; None if it is not."""
    if name == "default.topic.config":
        return "it would override other properties; put its properties beside the others"
    if name.startswith("test."):
        return "it replaces the cluster with a mock broker in memory"
    return None
