"""`Security`: the files of one secured stack, and the settings that name them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from stack.postgres import ServerTls
from stack.security.certificates import Authority

ISSUER = "https://issuer.invalid"
AUDIENCE = "kafka"

_KEY_ID = "stack"
_VALID_SECONDS = 3_600


class TokenIssuer:
    """Signs tokens. Its private key is never written."""

    def __init__(self, folder: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": _KEY_ID,
            "n": _base64(numbers.n.to_bytes(256)),
            "e": _base64(numbers.e.to_bytes(3)),
        }
        self.keys = folder / "jwks.json"
        self.keys.write_text(json.dumps({"keys": [key]}))

    def token(self, name: str) -> str:
        """Return a token that is valid for an hour.

        Args:
            name: Its subject: the principal is `User:` and this.
        """
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now - 60, "exp": now + _VALID_SECONDS}
        signed = f"{_encoded({'alg': 'RS256', 'typ': 'JWT', 'kid': _KEY_ID})}.{_encoded(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64(signature)}"


def _encoded(value: Mapping[str, Any]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class Security:
    """Certificates and token keys of one stack, new at each start.

    Args:
        folder: For the files; the stack removes it at its end.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder)
        self.tokens = TokenIssuer(folder)
        self._broker = self.authority.server("kafka")
        self._postgres = self.authority.server("postgres")

    def kafka_settings(self) -> dict[str, str]:
        """Return the settings of `server.properties` that name the files."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._broker.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "sasl.oauthbearer.jwks.endpoint.url": self.tokens.keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }

    def postgres_tls(self) -> ServerTls:
        """Return with what Postgres encrypts its connections."""
        return ServerTls(self._postgres.certificate, self._postgres.key, self.authority.certificate)

    def jvm_options(self) -> list[str]:
        """Return the options of a node's JVM: Kafka reads no key set that they do not name."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.keys.as_uri()}"]
