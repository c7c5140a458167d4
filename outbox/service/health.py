"""`/livez`, `/readyz` and `/metrics` of a service, on one small HTTP server in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from outbox.errors import ConfigurationError

STALE_SECONDS = 30.0
"""A main loop that has not turned for so long is not alive."""


@dataclass
class Health:
    """What a service says of itself. Its main loop calls `turned()` each time round."""

    not_ready: str | None = "starting"
    _turned: float = field(default_factory=time.monotonic)

    def turned(self) -> None:
        """The main loop went round."""
        self._turned = time.monotonic()

    def not_live(self) -> str | None:
        """Why the process should be restarted, or None."""
        idle = time.monotonic() - self._turned
        return f"the main loop has not turned for {idle:.0f} s" if idle > STALE_SECONDS else None


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Probes come every second; they are not worth a line."""


def serve_health(host: str, port: int, health: Health, registry: CollectorRegistry) -> Callable[[], None]:
    """Start the server in a daemon thread; the returned function stops it.

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
        server = make_server(host, port, app, handler_class=_Quiet)
    except OSError as error:
        raise ConfigurationError(
            f"/livez, /readyz and /metrics cannot be served on {host}:{port}; choose another port: {error.strerror}"
        ) from error
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return stop
