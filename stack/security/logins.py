"""Logins with a password: properties of librdkafka and of Kafka's Java client, and their secrets in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_MECHANISM = "SCRAM-SHA-256"
_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_SECRETS = ("sasl.password", "ssl.key.password", "sasl.jaas.config")


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """The login of a user whom `Kafka.add_user()` let in.

    Args:
        name: Name of the user, without quotation marks.
        password: Password of the user, without quotation marks.
        authority: Certificate of the authority that issued those of the servers, in PEM.
    """

    name: str
    password: str = field(repr=False)
    authority: Path

    def kafka(self) -> dict[str, str]:
        """Return the properties of librdkafka: those of library, services and commands."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": _MECHANISM,
            "sasl.username": self.name,
            "sasl.password": self.password,
        }

    def kafka_java(self) -> dict[str, str]:
        """Return the properties of Kafka's Java client: those with which Spark reads."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.mechanism": _MECHANISM,
            "sasl.jaas.config": f'{_JAAS} username="{self.name}" password="{self.password}";',
        }


def with_secret_files(properties: Mapping[str, str], folder: Path, owner: str) -> dict[str, str]:
    """Write each secret into a file that only this user may read, and return properties that name the files.

    Args:
        properties: Properties, of librdkafka or of the Java client.
        owner: Whose login it is: the names of the files begin with it.
    """
    found = dict(properties)
    for name in [name for name in _SECRETS if name in found]:
        file = folder / f"{owner}.{name}"
        file.touch(mode=0o600)
        file.write_text(found.pop(name))
        found[f"{name}_file"] = str(file)
    return found
