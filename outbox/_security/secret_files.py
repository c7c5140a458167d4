"""Secrets in files: a setting NAME_file names the file that holds the secret NAME."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outbox.errors import ConfigurationError

SUFFIX = "_file"

SECRET_PROPERTIES = frozenset(
    {
        # librdkafka's
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
        # of Kafka's Java client, with which Spark reads
        "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.keystore.key",
        "ssl.truststore.password",
    }
)
"""Properties for Kafka that hold secrets; each may be given as a file."""


def read_secret(what: str, path: Path) -> str:
    """Return what a secret file holds, without white space around it.

    Args:
        what: How errors name the file; where a slip may have put the secret in place of the path, without the path.
    """
    try:
        found = path.read_text().strip()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{what} cannot be read: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "the path is not valid"
        raise ConfigurationError(f"{what} cannot be read: {why or type(error).__name__}") from None
    if not found:
        raise ConfigurationError(f"{what} is empty: it must hold the secret")
    return found


def with_secrets(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties for Kafka with the secrets of files in them, as the files are at this moment."""
    found = dict(kafka)
    for given in [name for name in kafka if isinstance(name, str) and name.endswith(SUFFIX)]:
        name = given.removesuffix(SUFFIX)
        if name not in SECRET_PROPERTIES:
            continue  # the client refuses a property that it does not know
        path = Path(str(found.pop(given)))
        if name in found:
            raise ConfigurationError(f"Properties {name} and {given} are both given. Remove one of them.")
        found[name] = read_secret(f"The file of property {given}", path)
    return found
