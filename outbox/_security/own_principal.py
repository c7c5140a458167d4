"""Who a client of Kafka is, as far as it can know itself: Kafka has no request that returns the caller's principal.

With a password it is the user name, with a token the token's subject, with a certificate its subject. A broker that
maps names (`ssl.principal.mapping.rules`, `principal.builder.class`) may use another one.
"""

import base64
import json
import os
import pwd
import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outbox._security.encryption import security_protocol
from outbox._security.token_provider import PROPERTY, load_provider
from outbox.errors import ConfigurationError

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION = 0xA0
"""Tag of the optional version, before the other fields."""

_SUBJECT = 4
"""Its place behind serial number, algorithm, issuer and validity."""

_KINDS = {
    "550403": "CN",
    "550406": "C",
    "550407": "L",
    "550408": "ST",
    "550409": "STREET",
    "55040a": "O",
    "55040b": "OU",
    "0992268993f22c640101": "UID",
    "0992268993f22c640119": "DC",
}
"""Names of attributes in RFC 4514, by object identifier."""

_ENCODINGS = {0x0C: "utf-8", 0x13: "utf-8", 0x14: "latin-1", 0x16: "utf-8", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
_SPECIAL = re.compile(r'[",+<>;\\]|^[# ]| $')


def subject_of(pem: str) -> str:
    """Return the subject of the first certificate in a PEM text."""
    begin, end = pem.find(_BEGIN), pem.find(_END)
    if begin < 0 or end < begin:
        raise ValueError("there is no certificate in PEM")
    encoded = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)])
    try:
        (certificate,) = _contents(encoded)
        signed = next(_contents(certificate))
        fields = [content for tag, content in _elements(signed) if tag != _VERSION]
        parts = [_part(part) for part in _contents(fields[_SUBJECT])]
    except (IndexError, StopIteration) as error:
        raise ValueError("the certificate is malformed") from error
    return ",".join(reversed(parts))


def _part(content: bytes) -> str:
    return "+".join(_attribute(attribute) for attribute in _contents(content))


def _attribute(content: bytes) -> str:
    (_, kind), (tag, value) = _elements(content)
    name = _KINDS.get(kind.hex())
    if name is None or tag not in _ENCODINGS:
        return f"{name or kind.hex()}=#{value.hex()}"
    text = value.decode(_ENCODINGS[tag], "replace")
    return f"{name}={_SPECIAL.sub(lambda found: chr(92) + found[0], text)}"


def _contents(encoded: bytes) -> Iterator[bytes]:
    return (content for _, content in _elements(encoded))


def _elements(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element (DER)."""
    while encoded:
        tag, length, start = encoded[0], encoded[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(encoded[2:start])
        if start + length > len(encoded):
            raise ValueError("the certificate is cut off")
        yield tag, encoded[start : start + length]
        encoded = encoded[start + length :]


UNAUTHENTICATED = "unauthenticated"

_JWT_PARTS = 3


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
        return f"User:{subject_of(str(text) if text else Path(str(path)).read_text())}"
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
    return f"User:{_subject(str(token)) or _told(more)}"


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


def _told(more: list[Any]) -> str:
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
