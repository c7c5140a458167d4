"""The principal of a client as it can know it itself, and what is recorded of an operator."""

import base64
import datetime as dt
import json
import os
import pwd
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from outbox._security.own_principal import own_principal, recorded_name
from outbox.errors import ConfigurationError
from outbox.operator.settings import DecisionSettings

NOW = dt.datetime.now(dt.UTC)
KEY = ec.generate_private_key(ec.SECP256R1())


def _named(**names: str) -> str:
    kinds = {"CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME}
    parts = [x509.RelativeDistinguishedName([x509.NameAttribute(kinds[kind], text)]) for kind, text in names.items()]
    name = x509.Name(parts)
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, NOW, NOW + dt.timedelta(hours=1))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _token(claims: object) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{encoded}.c2ln"


def _sasl(mechanism: str, **more: Any) -> dict[str, Any]:
    return {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **more}


def _provided(*answer: object) -> dict[str, Any]:
    return _sasl("OAUTHBEARER", oauth_cb=lambda _: answer)


SSL = {"security.protocol": "ssl"}


@pytest.mark.parametrize(
    ("kafka", "principal"),
    [
        ({}, None),
        ({"security.protocol": "PLAINTEXT", "sasl.username": "not used"}, None),
        (SSL, None),
        ({**SSL, "ssl.certificate.pem": _named(O="shop", CN="anna")}, "User:CN=anna,O=shop"),
        (_sasl("SCRAM-SHA-512", **{"sasl.username": "anna"}), "User:anna"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanisms": "PLAIN", "sasl.username": "anna"}, "User:anna"),
        (_sasl("GSSAPI", **{"sasl.kerberos.principal": "anna"}), "User:anna"),
        (_provided(_token({"sub": "anna"}), 1.0, "told"), "User:anna"),
        (_provided("opaque", 1.0, "told"), "User:told"),
        (_provided(_token(["sub"]), 1.0, "told"), "User:told"),
        (_provided("a.%.c", 1.0, "told"), "User:told"),
        (_sasl("OAUTHBEARER", **{"sasl.oauthbearer.client.id": "anna"}), "OAuth client:anna"),
    ],
)
def test_principal_is_what_the_settings_say(kafka: dict[str, Any], principal: str | None) -> None:
    assert own_principal(kafka) == principal


UNKNOWN = [
    (_sasl("OAUTHBEARER"), "no provider"),
    (_sasl("OAUTHBEARER", oauth_cb=Mock(side_effect=PermissionError("a secret"))), "failed: PermissionError"),
    (_provided("opaque", 1.0), "no JWT with a subject"),
    (_sasl("GSSAPI"), "GSSAPI without a name"),
    ({**SSL, "ssl.keystore.location": "/some.p12"}, "in a keystore"),
    ({**SSL, "ssl.certificate.location": "/none.pem"}, "cannot be read"),
    ({**SSL, "ssl.certificate.pem": "-----BEGIN PRIVATE KEY-----"}, "cannot be read"),
]


@pytest.mark.parametrize(("kafka", "why"), UNKNOWN)
def test_principal_that_is_not_known_asks_for_a_name(kafka: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{why}.*Give your name as --operator NAME") as refused:
        recorded_name(kafka, "")
    assert "a secret" not in str(refused.value)
    assert recorded_name(kafka, "anna") == "anna (authenticated, principal not known)"


def test_certificate_of_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    file.write_text(f"Bag Attributes\n{_named(CN='anna')}{_named(CN='the issuer')}")
    assert own_principal({**SSL, "ssl.certificate.location": str(file)}) == "User:CN=anna"


def test_record_has_principal_and_given_name() -> None:
    kafka = _sasl("PLAIN", **{"sasl.username": "ops"})
    assert recorded_name(kafka, "") == "User:ops"
    assert recorded_name(kafka, "anna") == "anna (User:ops)"


def test_record_without_a_principal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the shell, which anybody can set, name nobody."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "somebody-else")
    assert recorded_name({}, "") == f"unauthenticated:{pwd.getpwuid(os.getuid()).pw_name}"
    assert recorded_name({}, "anna") == "unauthenticated:anna"


def test_user_without_a_name_is_recorded_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert recorded_name({}, "") == "unauthenticated:user 4000000000"


@pytest.mark.parametrize("name", ["User:anna", "anna (User:ops)", "a\nb", "a" * 101])
def test_given_name_cannot_look_like_a_principal(name: str) -> None:
    with pytest.raises(ConfigurationError, match="operator"):
        DecisionSettings(operator=name)
