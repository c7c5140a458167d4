"""Who a client of Kafka is, as far as it can know itself: Kafka has no request that returns the caller's principal.

With a password it is the user name, with a token the token's subject, with a certificate its subject. A broker that
maps names (`ssl.principal.mapping.rules`, `principal.builder.class`) may use another one.
"""

import base64
import json
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.x509 import load_pem_x509_certificates

from outbox._security.encryption import security_protocol
from outbox._security.token_provider import PROPERTY, load_provider
from outbox.errors import ConfigurationError

UNAUTHENTICATED = "unauthenticated"

_JWT_PARTS = 3


def recorded_name(kafka: Mapping[str, Any], given: str) -> str:
    """Return the name of an operator for records: the client's principal, and the name that the operator gave.

    Without a principal it begins with `unauthenticated:`, which no name that an operator gives can contain.
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
    """Return the principal of a client by its properties, such as `User:orders`; None if it does not authenticate."""
    protocol = security_protocol(kafka)
    if protocol == "ssl":
        return _of_certificate(kafka)
    if not protocol.startswith("sasl"):
        return None
    mechanism = str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "GSSAPI").upper()
    if mechanism == "OAUTHBEARER":
        return _of_token(kafka)
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


def _of_token(kafka: Mapping[str, Any]) -> str:
    provider, config = kafka.get(PROPERTY), str(kafka.get("sasl.oauthbearer.config") or "")
    if isinstance(provider, str):
        provider = load_provider(provider)
    if not callable(provider):
        client = kafka.get("sasl.oauthbearer.client.id")
        if not client:
            raise _not_known("the token has no provider in oauth_cb")
        return f"OAuth client:{client}"
    try:
        token, _, *more = provider(config)
    except Exception as error:  # the provider is the user's, and may raise anything
        raise _not_known(f"the token provider failed: {type(error).__name__}") from error
    return f"User:{_subject(str(token)) or _named(more)}"


def _subject(token: str) -> str:
    """Return the subject of a JWT; empty if the token is not one. The broker checks the token, not this client."""
    parts = token.split(".")
    if len(parts) != _JWT_PARTS:
        return ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return ""
    return str(claims.get("sub") or "") if isinstance(claims, dict) else ""


def _named(more: list[Any]) -> str:
    """Return the principal that a token provider returns beside the token."""
    if not more or not more[0]:
        raise _not_known("the token is no JWT with a subject")
    return str(more[0])


def _not_known(why: str) -> ConfigurationError:
    return ConfigurationError(f"The principal of this client is not known: {why}. Give your name as --operator NAME.")


def _system_user() -> str:
    """Return the name of the process's user, from the system and not from its environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container, whose user has no name
        return f"user {os.getuid()}"
