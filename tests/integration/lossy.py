"""A proxy before Postgres that loses COMMIT or its reply, as a network does at the worst moment."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class LossyProxy:
    """Passes everything between clients and Postgres, but for the reply of COMMIT: then the connection is cut.

    Args:
        url: Where Postgres is.
        arrives: Whether COMMIT itself arrives; if not, the connection is cut before it.
    """

    def __init__(self, url: str, *, arrives: bool = True) -> None:
        self._arrives = arrives
        parts = conninfo_to_dict(url)
        self._server = (str(parts["host"]), int(parts["port"] or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = make_conninfo(url, host="127.0.0.1", port=self._listener.getsockname()[1])
        self.cut = threading.Event()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                committing = threading.Event()
                for source, target, name in ((client, server, "client"), (server, client, "server")):
                    thread = threading.Thread(target=self._pass, args=(source, target, name, committing), daemon=True)
                    thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, name: str, committing: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if name == "client" and b"COMMIT" in data:
                    committing.set()
                if committing.is_set() and (name == "server" or not self._arrives):
                    self.cut.set()
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Self:
        """Start listening."""
        threading.Thread(target=self._accept, name="lossy-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
