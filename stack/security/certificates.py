"""A certificate authority of one stack: certificates for its servers and for clients, none of which outlives it."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stack.ports import HOST

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
