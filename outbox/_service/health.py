"""`/livez`, `/readyz` and `/metrics` of a service, on one small HTTP server in threads of its own."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from outbox.errors import ConfigurationError

log = structlog.get_logger()

HANDLER_SECONDS = 5
"""A client may be silent for this time."""

CONNECTIONS = 32
"""Connections that are served at once."""

STALE_SECONDS = 30.0
"""A main loop that has not turned for this time is not alive."""


@dataclass
class Health:
    """The state of a service. Its main loop calls `turned()` each time round."""

    not_ready: str | None = "starting"
    _turned: float = field(default_factory=time.monotonic)

    def turned(self) -> None:
        """Record a turn of the main loop."""
        self._turned = time.monotonic()

    def not_live(self) -> str | None:
        """Why the process should be restarted, or None."""
        idle = time.monotonic() - self._turned
        return f"the main loop has not turned for {idle:.0f} s" if idle > STALE_SECONDS else None


class _Handler(WSGIRequestHandler):
    timeout = HANDLER_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Log nothing: probes come every second."""


class HealthServer(ThreadingMixIn, WSGIServer):
    """An HTTP server with a thread for each connection, and a limit of connections.

    A client that sends nothing is disconnected after `HANDLER_SECONDS`. At the limit, the oldest connection makes room
    for the newest one, so that idle connections never keep a probe out.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *args: Any, **options: Any) -> None:
        self._open: OrderedDict[int, socket.socket] = OrderedDict()
        self._counting = threading.Lock()
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        with self._counting:
            self._open[id(request)] = request
            if len(self._open) > CONNECTIONS:
                _, oldest = self._open.popitem(last=False)
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread then reads the end, and ends
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._counting:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what a request caused; clients that send nothing, or go, cause nothing."""
        del request, client_address
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("Health request failed", error=repr(error))


def serve_health(host: str, port: int, health: Health, registry: CollectorRegistry) -> Callable[[], None]:
    """Start the server in daemon threads; the returned function stops it.

    Raises:
        ConfigurationError: The port is in use, or the address is not of this machine.
    """
    metrics: Any = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        reasons: dict[str, Callable[[], str | None]] = {"/livez": health.not_live, "/readyz": lambda: health.not_ready}
        if path not in reasons:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"try /livez, /readyz or /metrics\n"]
        reason = reasons[path]()
        start_response("503 Service Unavailable" if reason else "200 OK", [("Content-Type", "text/plain")])
        return [f"{reason or 'ok'}\n".encode()]

    try:
        server = make_server(host, port, app, HealthServer, _Handler)
    except OSError as error:
        raise ConfigurationError(
            f"/livez, /readyz and /metrics cannot be served on {host}:{port}; choose another port: {error.strerror}"
        ) from error
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop
