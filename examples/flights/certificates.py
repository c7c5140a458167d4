"""`Security`: the files of one secured stack, and the settings that name them."""

import base64
import datetime as dt
import ipaddress
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stack.ports import HOST
from stack.postgres import ServerTls

_VALID = dt.timedelta(days=7)
_EARLIER = dt.timedelta(hours=1)  # the clock of a server in a test may be behind
_ORGANISATION = "outbox stack"


class Certificate(NamedTuple):
    """Files of a certificate, all in PEM.

    Attributes:
        both: Key and certificate in one file, as Kafka's brokers take them.
    """

    certificate: Path
    key: Path
    both: Path


class Authority:
    """Issues certificates. Its own key is never written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("outbox stack authority")
        unsigned = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self._own = unsigned.sign(self._key, hashes.SHA256())
        self.certificate = folder / "authority.pem"
        self.certificate.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str) -> Certificate:
        """Return a certificate for a server on this machine's loopback addresses."""
        loopback = [x509.DNSName("localhost"), *map(x509.IPAddress, map(ipaddress.ip_address, (HOST, "::1")))]
        return self._issue(name, ExtendedKeyUsageOID.SERVER_AUTH, loopback)

    def client(self, name: str, password: str = "") -> Certificate:
        """Return a certificate for a client.

        Args:
            password: Of its private key; empty: the key is not encrypted.
        """
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, (), password)

    def _issue(
        self,
        name: str,
        usage: x509.ObjectIdentifier,
        addresses: list[x509.GeneralName] | tuple[()],
        password: str = "",
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        unsigned = self._builder(_subject(name), key).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if addresses:
            unsigned = unsigned.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        signed = unsigned.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        secret = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
        made = Certificate(*(self._folder / f"{name}.{kind}.pem" for kind in ("certificate", "key", "both")))
        for file, content in ((made.certificate, signed), (made.key, private), (made.both, private + signed)):
            file.touch(mode=0o600)
            file.write_bytes(content)
        return made

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return x509.CertificateBuilder(
            self._name, subject, key.public_key(), x509.random_serial_number(), now - _EARLIER, now + _VALID
        )


def _subject(name: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANISATION)
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, name)])


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
        """Return the files of Postgres's own TLS."""
        return ServerTls(self._postgres.certificate, self._postgres.key, self.authority.certificate)

    def jvm_options(self) -> list[str]:
        """Return the options of a node's JVM: Kafka reads no key set that they do not name."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.keys.as_uri()}"]
