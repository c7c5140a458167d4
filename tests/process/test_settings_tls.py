"""Certificates that pass through the settings are those that the network sees: a handshake that both sides verify."""

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from outbox._kafka.admin import admin_client, describe_topics
from outbox.errors import KafkaUnreachable
from outbox.settings import HalfSettings

PHRASE = "s3cret-of-the-key"
NOW = dt.datetime.now(dt.UTC)


class Certificate(NamedTuple):
    """Files of a certificate that signed itself, and of its key, which has the password."""

    certificate: Path
    key: Path


def certificate(folder: Path, name: str) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(NOW - dt.timedelta(hours=1))
        .not_valid_after(NOW + dt.timedelta(hours=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PHRASE.encode()),
        )
    )
    return made


class Broker:
    """Shakes hands with whoever shows the client's certificate, and remembers whom."""

    def __init__(self, server: Certificate, client: Certificate) -> None:
        self.seen: list[str] = []
        self.shaken = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(server.certificate, server.key, PHRASE)
        self._context.load_verify_locations(client.certificate)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # closed
            with connection:
                self._shake(connection)

    def _shake(self, connection: socket.socket) -> None:
        try:
            with self._context.wrap_socket(connection, server_side=True) as secure:
                subject: Any = (secure.getpeercert() or {})["subject"]
                self.seen.append(subject[0][0][1])
                self.shaken.set()
        except OSError:
            return  # no handshake

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


@pytest.fixture
def server(tmp_path: Path) -> Certificate:
    return certificate(tmp_path, "server")


@pytest.fixture
def client(tmp_path: Path) -> Certificate:
    return certificate(tmp_path, "client")


@pytest.fixture
def broker(server: Certificate, client: Certificate) -> Iterator[Broker]:
    made = Broker(server, client)
    yield made
    made.close()


def properties(broker: Broker, server: Certificate, client: Certificate) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address,
        "security.protocol": "ssl",
        "ssl.ca.location": str(server.certificate),
        "ssl.certificate.location": str(client.certificate),
        "ssl.key.location": str(client.key),
        "ssl.key.password": PHRASE,
        "log_level": 0,
    }


def test_files_reach_the_broker(broker: Broker, server: Certificate, client: Certificate) -> None:
    admin = admin_client(HalfSettings("orders", kafka=properties(broker, server, client)).kafka)
    assert broker.shaken.wait(20)
    assert broker.seen[0] == "client"
    del admin


def test_pem_text_reaches_the_broker(broker: Broker, server: Certificate, client: Certificate) -> None:
    kafka = properties(broker, server, client)
    for name in ("ca", "certificate", "key"):
        kafka[f"ssl.{name}.pem"] = Path(kafka.pop(f"ssl.{name}.location")).read_text()
    admin = admin_client(HalfSettings("orders", kafka=kafka).kafka)
    assert broker.shaken.wait(20)
    del admin


def test_a_broker_that_the_client_does_not_trust_is_refused_without_a_secret(
    broker: Broker, server: Certificate, client: Certificate
) -> None:
    kafka = {**properties(broker, server, client), "ssl.ca.location": str(client.certificate)}
    with pytest.raises(KafkaUnreachable) as unreachable:
        describe_topics(admin_client(HalfSettings("orders", kafka=kafka).kafka), ["orders"], 0.5)
    assert broker.seen == []
    assert PHRASE not in str(unreachable.value)
