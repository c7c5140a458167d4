"""The HTTP server of a service's health: no client keeps a probe out."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from outbox._service import health
from outbox._service.health import Health, serve_health
from tests.support.harness import wait_until
from tests.support.probes import free_port, get


@pytest.fixture
def port() -> Iterator[int]:
    found = free_port()
    stop = serve_health("127.0.0.1", found, Health(not_ready="starting"), CollectorRegistry())
    yield found
    stop()


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def _handlers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_health_with_an_idle_connection_answers(port: int) -> None:
    with _connect(port):
        assert get(port, "/livez") == (200, "ok\n")
        assert get(port, "/readyz") == (503, "starting\n")


def test_health_with_many_idle_connections_answers(port: int) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(_connect(port)) for _ in range(3 * health.CONNECTIONS)]
        for connection in idle[::2]:
            connection.send(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        assert get(port, "/livez") == (200, "ok\n")
        wait_until(lambda: _handlers() <= health.CONNECTIONS + 1)
        assert get(port, "/metrics")[0] == 200


def test_health_idle_connection_is_closed_after_the_timeout(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health._Handler, "timeout", 0.1)
    with _connect(port) as idle:
        assert idle.recv(1) == b""
    wait_until(lambda: _handlers() == 0)


def test_health_errors_of_clients_leave_no_traceback(
    port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health._Handler, "timeout", 0.1)
    with _connect(port) as idle:
        idle.send(b"GET /liv")
        idle.recv(100)
    assert get(port, "/livez")[0] == 200
    assert "Traceback" not in capfd.readouterr().err
