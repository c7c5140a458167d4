"""Who a client of Kafka is, as far as it can know itself: Kafka has no request that returns the caller's principal.

With a password it is the user name, with a certificate its subject. A broker that maps names
(`ssl.principal.mapping.rules`, `principal.builder.class`) may use another one.
"""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificates

from outbox._security.encryption import security_protocol
from outbox.errors import ConfigurationError

UNAUTHENTICATED = "unauthenticated"


def recorded_name(kafka: Mapping[str, Any], given: str) -> str:
    """Return the name of an operator for records: the client's principal, and the name that the operator gave.

    Without a principal it begins with `unauthenticated:`, which no name that an operator gives can contain.

    Args:
        kafka: librdkafka properties of the client, with secrets.
        given: The name that the operator gave; empty: none.
    """
    try:
        principal = own_principal(kafka)
    except ConfigurationError:
        if not given:
            raise
        return f"{given} (authenticated, principal not known)"
    if principal is None:
        return f"{UNAUTHENTICATED}:{given or _system_user()}"
    return f"{given} ({principal})" if given else principal


def own_principal(kafka: Mapping[str, Any]) -> str | None:
    """Return the principal of a client, such as `User:orders`; None if it does not authenticate.

    Args:
        kafka: librdkafka properties of the client, with secrets.
    """
    protocol = security_protocol(kafka)
    if protocol == "ssl":
        return _of_certificate(kafka)
    if not protocol.startswith("sasl"):
        return None
    mechanism = str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "GSSAPI").upper()
    if mechanism == "OAUTHBEARER":
        if client := kafka.get("sasl.oauthbearer.client.id"):
            return f"OAuth client:{client}"
        raise _not_known("it has a token")
    name = kafka.get("sasl.kerberos.principal" if mechanism == "GSSAPI" else "sasl.username")
    if not name:
        raise _not_known(f"{mechanism} without a name in the settings")
    return f"User:{name}"


def _of_certificate(kafka: Mapping[str, Any]) -> str | None:
    text, path = kafka.get("ssl.certificate.pem"), kafka.get("ssl.certificate.location")
    if not text and not path:
        if kafka.get("ssl.keystore.location"):
            raise _not_known("the certificate is in a keystore")
        return None
    try:
        pem = str(text).encode() if text else Path(str(path)).read_bytes()
        return f"User:{load_pem_x509_certificates(pem)[0].subject.rfc4514_string()}"
    except (OSError, ValueError) as error:
        raise _not_known("the certificate cannot be read") from error


def _not_known(why: str) -> ConfigurationError:
    return ConfigurationError(f"The principal of this client is not known: {why}. Give your name as --operator NAME.")


def _system_user() -> str:
    """Return the name of the process's user, from the system and not from its environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container, whose user has no name
        return f"user {os.getuid()}"
