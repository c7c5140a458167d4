"""What the peers that run on Java have in common: their jars, their ports, their processes, their errors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from outbox._jars.fetch import fetch
from outbox._jars.java import find_java
from outbox.errors import OutboxError
from stack.errors import log_tail
from stack.ports import Ports
from stack.processes import Command, Processes
from tests.support.harness import wait_until

READY_SECONDS = 180.0
"""On a quiet machine a peer is up in 10 s."""

T = TypeVar("T")


class PeerError(OutboxError):
    """A peer cannot be started or does not do its work: its figures are not measured."""


@dataclass(frozen=True, slots=True)
class Room:
    """A folder, ports and processes of one peer, gone with it.

    Args:
        folder: For settings, logs and data; removed at the end.
        processes: Where its servers run; they end with this process, in whatever way it ends.
    """

    folder: Path
    ports: Ports
    processes: Processes

    def run_java(self, name: str, lock: Path, options: Sequence[str], arguments: Sequence[str]) -> None:
        """Start a Java program of a lock's jars.

        Args:
            options: Of Java.
            arguments: The main class and its arguments.
        """
        path = ":".join(map(str, fetch(lock)))
        argv = [str(find_java().command), *options, "-cp", path, *arguments]
        self.processes.start(Command(name, argv, self.log(name)))

    def log(self, name: str) -> Path:
        """Return what a process said."""
        return self.folder / f"{name}.log"

    def wait_for(self, name: str, condition: Callable[[], bool], seconds: float = READY_SECONDS) -> None:
        """Wait until a condition holds."""

        def holds_or_ended() -> bool:
            if (code := self.processes.ended(name)) is not None:
                raise PeerError(f"{name} ended ({code}){log_tail(self.log(name))}")
            return condition()

        try:
            wait_until(holds_or_ended, seconds)
        except AssertionError as error:
            raise PeerError(f"{name} was not ready within {seconds:.0f} s{log_tail(self.log(name))}") from error


@contextmanager
def make_room(prefix: str) -> Iterator[Room]:
    """Make a room for one peer, and remove it after the block."""
    folder = Path(tempfile.mkdtemp(prefix=f"outbox-{prefix}-"))
    processes, ports = Processes(folder, remove=folder), Ports()
    try:
        yield Room(folder, ports, processes)
    finally:
        processes.close()
        ports.close()
