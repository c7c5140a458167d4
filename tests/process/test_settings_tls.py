"""Certificates that pass through the settings are those that the network sees: a handshake that both sides verify."""

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.flights.certificates import Authority, Certificate
from outbox._kafka.admin import admin_client, describe_topics
from outbox.errors import KafkaUnreachable
from outbox.settings import HalfSettings

PHRASE = "s3cret-of-the-key"


class Broker:
    """Shakes hands with whoever shows the client's certificate, and remembers whom."""

    def __init__(self, authority: Authority) -> None:
        self.seen: list[str] = []
        self.shaken = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(authority.server("server").both)
        self._context.load_verify_locations(authority.certificate)
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
                self.seen.append(subject[-1][0][1])
                self.shaken.set()
        except OSError:
            return  # no handshake

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def client(authority: Authority) -> Certificate:
    return authority.client("client", PHRASE)


@pytest.fixture
def broker(authority: Authority) -> Iterator[Broker]:
    made = Broker(authority)
    yield made
    made.close()


@pytest.fixture
def properties(broker: Broker, authority: Authority, client: Certificate) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address,
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.certificate),
        "ssl.certificate.location": str(client.certificate),
        "ssl.key.location": str(client.key),
        "ssl.key.password": PHRASE,
        "log_level": 0,
    }


def test_files_reach_the_broker(broker: Broker, properties: dict[str, Any]) -> None:
    admin = admin_client(HalfSettings("orders", kafka=properties).kafka)
    assert broker.shaken.wait(20)
    assert broker.seen[0] == "client"
    del admin


def test_pem_text_reaches_the_broker(broker: Broker, properties: dict[str, Any]) -> None:
    for name in ("ca", "certificate", "key"):
        properties[f"ssl.{name}.pem"] = Path(properties.pop(f"ssl.{name}.location")).read_text()
    admin = admin_client(HalfSettings("orders", kafka=properties).kafka)
    assert broker.shaken.wait(20)
    del admin


def test_a_broker_that_the_client_does_not_trust_is_refused_without_a_secret(
    broker: Broker, properties: dict[str, Any], client: Certificate
) -> None:
    kafka = {**properties, "ssl.ca.location": str(client.certificate)}
    with pytest.raises(KafkaUnreachable) as unreachable:
        describe_topics(admin_client(HalfSettings("orders", kafka=kafka).kafka), ["orders"], 0.5)
    assert broker.seen == []
    assert PHRASE not in str(unreachable.value)
