"""A request that Kafka does not answer says why: the login, the certificate, the name or the port."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import create_server
from typing import cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from examples.flights.certificates import Authority
from outbox._kafka.admin import Causes, admin_client, describe_topics
from outbox._kafka.groups import committed_checkpoints
from outbox.errors import KafkaUnreachable
from outbox.protocol.names import Channel

REFUSED = "127.0.0.1:9"
SECONDS = 2.0


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path).server("server").both)
    listener = create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    context.wrap_socket(connection, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    stopping.set()
    listener.shutdown(2)
    listener.close()
    thread.join()


def message_of(kafka: dict[str, str], seconds: float = SECONDS) -> str:
    with pytest.raises(KafkaUnreachable) as raised:
        describe_topics(admin_client({"log_level": "0", **kafka}), ["orders"], seconds)
    return str(raised.value)


def test_refused_connection_names_address() -> None:
    message = message_of({"bootstrap.servers": REFUSED})
    assert "127.0.0.1:9 failed: Connection refused" in message
    assert "correct bootstrap.servers" in message


def test_unknown_host_is_named() -> None:
    message = message_of({"bootstrap.servers": "no-such-host.invalid:9092"})
    assert "Failed to resolve 'no-such-host.invalid:9092'" in message
    assert "Correct the host name" in message


def test_unknown_certificate_authority_is_named(tls_server: int) -> None:
    message = message_of({"bootstrap.servers": f"127.0.0.1:{tls_server}", "security.protocol": "SSL"})
    assert "certificate verify failed" in message
    assert "Correct ssl.ca.location" in message


@pytest.mark.long
def test_unreachable_token_endpoint_is_named() -> None:
    message = message_of(
        {
            "bootstrap.servers": REFUSED,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "shop",
            "sasl.oauthbearer.client.secret": "s3crpa55",
            "sasl.oauthbearer.token.endpoint.url": f"http://{REFUSED}/token",
        },
        seconds=8.0,  # the token is requested several times
    )
    assert "OAUTHBEARER token" in message
    assert "token endpoint" in message
    assert "s3crpa55" not in message


class Silent:
    def poll(self, _: float) -> None:
        """Return nothing."""


def test_cause_of_earlier_request_is_dropped() -> None:
    """What broke a connection before a request does not explain its failure."""
    causes, client = Causes(), cast("AdminClient", Silent())
    causes.properties()["error_cb"](KafkaError(KafkaError._SSL, "expired"))
    found = causes.explain(client)
    assert found is not None
    assert "expired" in found[0]
    causes.forget(client)
    assert causes.explain(client) is None


def test_token_failure_before_a_request_is_named() -> None:
    """Librdkafka does not report the same token failure again."""
    causes, client = Causes(), cast("AdminClient", Silent())
    causes.properties()["error_cb"](KafkaError(KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token"))
    causes.forget(client)
    found = causes.explain(client)
    assert found is not None
    assert "token endpoint" in found[1]


def test_login_explains_more_than_lost_connection() -> None:
    causes, client = Causes(), cast("AdminClient", Silent())
    for code in (KafkaError._AUTHENTICATION, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        causes.properties()["error_cb"](KafkaError(code, f"code {code} (after 1ms in state APIVERSION_QUERY)"))
    advice = "Correct the credentials (sasl.*), or the token endpoint"
    assert causes.explain(client) == (f"code {KafkaError._AUTHENTICATION}", advice)


def test_service_request_names_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox._kafka.groups.GROUP_TIMEOUT", SECONDS)
    kafka = {"log_level": "0", "bootstrap.servers": REFUSED}
    with pytest.raises(KafkaUnreachable, match="Connection refused"):
        committed_checkpoints(kafka, Channel("outbox").relay_group, [("outbox.half", 0)])
