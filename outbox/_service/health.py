"""`/livez`, `/readyz` and `/metrics` of a service, on one small HTTP server in threads of its own."""

import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple, Protocol
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


class Answer(NamedTuple):
    """What a probe is answered."""

    is_fine: bool
    text: str


class Probed(Protocol):
    """What probes ask."""

    def live(self) -> Answer:
        """Return whether the process should go on, for /livez."""

    def ready(self, channel: str = "") -> Answer | None:
        """Return whether a channel (empty: the process) is ready, for /readyz; None if it does not serve it."""


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

    def stopped(self, reason: str) -> None:
        """Record that the service stopped, and is started again."""
        self.turned()
        self.not_ready = f"stopped: {reason}"

    def live(self) -> Answer:
        return _answer(self.not_live())

    def ready(self, channel: str = "") -> Answer | None:
        return None if channel else _answer(self.not_ready)


class ChannelsHealth:
    """The state of a process of several channels (R66).

    The process is ready while it is for one channel, and alive while its own main loop turns: to take it out of service
    or to restart it would stop the channels that are well.
    """

    def __init__(self, channels: Mapping[str, Health]) -> None:
        self._channels = channels
        self._own = Health()

    def turned(self) -> None:
        """Record a turn of the main loop of the process."""
        self._own.turned()

    def live(self) -> Answer:
        return self._own.live()

    def ready(self, channel: str = "") -> Answer | None:
        """See `Probed`; the text names each channel that is not ready, with the reason."""
        if channel:
            one = self._channels.get(channel)
            return None if one is None else _answer(why_not_ready(one))
        problems = {name: why for name, one in sorted(self._channels.items()) if (why := why_not_ready(one))}
        lines = "\n".join(f"channel {name}: {why}" for name, why in problems.items())
        return Answer(len(problems) < len(self._channels), lines or "ok")


def why_not_ready(health: Health) -> str | None:
    """Return why the service of a channel is not ready; a main loop that does not turn is a reason, too."""
    return health.not_ready or health.not_live()


def _answer(problem: str | None) -> Answer:
    return Answer(problem is None, problem or "ok")


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
        with self._counting:
            self._open.pop(id(request), None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what a request caused; clients that send nothing, or go, cause nothing."""
        del request, client_address
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("Health request failed", error=repr(error))


def serve_health(host: str, port: int, health: Probed, registry: CollectorRegistry) -> Callable[[], None]:
    """Start the server in daemon threads; the returned function stops it."""
    metrics: Any = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        answer = _probe(path, health)
        if answer is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [_not_found(path)]
        start_response("200 OK" if answer.is_fine else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [f"{answer.text}\n".encode()]

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


def _not_found(path: str) -> bytes:
    """Return what a request for a page that there is not is answered."""
    pages = b"try /livez, /readyz, /readyz/CHANNEL (of several) or /metrics\n"
    return b"this process serves no such channel: " + pages if path.startswith("/readyz/") else pages


def _probe(path: str, health: Probed) -> Answer | None:
    """Return the answer to a probe; None: there is no such page."""
    if path == "/livez":
        return health.live()
    page, _, channel = path.removeprefix("/").partition("/")
    return health.ready(channel) if page == "readyz" else None
