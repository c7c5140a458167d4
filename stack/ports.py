"""Free ports, chosen so that stacks which start side by side do not choose the same ones."""

import random
import socket
from collections.abc import Iterator

from stack.errors import PortInUseError

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_767
"""Chosen ports are below the range in which the system picks source ports of clients: such a client, by chance on a
server's port, keeps the server from starting."""


class Ports:
    """Ports claimed by one stack until it is closed."""

    def __init__(self) -> None:
        self._claims: dict[int, socket.socket] = {}

    def claim(self, wanted: int | None = None) -> int:
        for port in [wanted] if wanted is not None else _some_ports():
            if self._take(port):
                return port
        if wanted is None:
            raise PortInUseError(f"no free port of {HOST} found between {LOWEST} and {HIGHEST}")
        raise PortInUseError(f"port {wanted} of {HOST} is in use: stop what listens there, or name another port")

    def close(self) -> None:
        for claim in self._claims.values():
            claim.close()
        self._claims.clear()

    def _take(self, port: int) -> bool:
        # A name in the abstract socket space is a lock that spans exactly the processes which share the ports
        # (the network namespace), and it goes away with its holder. No file is left behind.
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0kafka-transactional-outbox-port-{port}")
        except OSError:
            claim.close()
            return False
        if not is_free(port):
            claim.close()
            return False
        self._claims[port] = claim
        return True


def is_free(port: int) -> bool:
    """Whether a server could listen on a port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that linger after a restart are no obstacle, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _some_ports() -> Iterator[int]:
    chance = random.SystemRandom()
    return (chance.randint(LOWEST, HIGHEST) for _ in range(200))
