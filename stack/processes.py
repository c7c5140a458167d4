"""The servers' processes, seen from the stack: started, signalled and watched through the supervisor."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.errors import PortInUseError, StartError, log_tail
from stack.ports import HOST, is_free

_PROGRAM = Path(__file__).with_name("supervisor.py")
_END_SECONDS = 15.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class User:
    """An account to run a server under."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Command:
    """What to run.

    Attributes:
        name: A name for people and for later questions; one process of a name at a time.
        argv: The program's full path and its arguments.
        log: File that its output is appended to.
        user: Account to run it under; None: the current one.
    """

    name: str
    argv: Sequence[str]
    log: Path
    user: User | None = None


class Processes:
    """The processes of one stack. They all end when this is closed or when this process ends, in whatever way."""

    def __init__(self, folder: Path, *, remove: Path | None) -> None:
        # Isolated and without site packages it starts in 20 ms; in a session of its own Ctrl-C does not reach it.
        command = [sys.executable, "-I", "-S", str(_PROGRAM), *([str(remove)] if remove else [])]
        with (folder / "supervisor.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._lock = threading.Lock()

    def start(self, command: Command) -> None:
        self._ask(
            {
                "do": "start",
                "name": command.name,
                "argv": list(command.argv),
                # A developer's PGSSLMODE or PGPORT is not meant for servers of ours.
                "env": {name: value for name, value in os.environ.items() if not name.startswith("PG")},
                "log": str(command.log),
                "user": [command.user.uid, command.user.gid] if command.user else None,
            },
        )

    def run(self, command: Command, seconds: float = 60.0) -> None:
        self.start(command)
        code = self.wait(command.name, seconds)
        if code != 0:
            what = f"failed ({code})" if code is not None else f"took more than {seconds:.0f} s"
            raise StartError(f"{command.name} {what}{log_tail(command.log)}")

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process; nothing happens if it has ended."""
        self._ask({"do": "signal", "name": name, "number": int(number)})

    def ended(self, name: str) -> int | None:
        """Return the return code of a process (negative: the signal that killed it), None while it runs."""
        code = self._ask({"do": "ask", "name": name})["ended"]
        return None if code is None else int(code)

    def require(self, name: str, ports: Iterable[int], log: Path) -> None:
        """Raise StartError if a server has ended, PortInUseError if another one has one of its ports."""
        code = self.ended(name)
        if code is None:
            return
        for port in ports:
            if not is_free(port):
                raise PortInUseError(f"port {port} of {HOST} was taken while {name} started{log_tail(log)}")
        raise StartError(f"{name} ended ({code}){log_tail(log)}")

    def wait(self, name: str, seconds: float) -> int | None:
        """Wait for a process and for what it left behind; its return code, or None when time is up first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self._ask({"do": "ask", "name": name})
            if answer["ended"] is not None and not answer["others"]:
                return int(answer["ended"])
            time.sleep(_POLL_SECONDS)
        return None

    def close(self) -> None:
        """Kill what still runs and wait until all of it is gone."""
        if self._supervisor.stdin is None or self._supervisor.stdout is None:
            return
        with suppress(OSError):  # it is gone already
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        with self._lock:
            self._supervisor.stdout.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        # Threads start servers side by side; question and answer belong together.
        with self._lock:
            line = self._exchange(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = (
            json.loads(line) if line else {"error": "the stack was stopped, or its supervisor is gone"}
        )
        if "error" in answer:
            raise StartError(str(answer["error"]))
        return answer

    def _exchange(self, request: bytes) -> bytes:
        if self._supervisor.stdin is None or self._supervisor.stdout is None:
            return b""
        try:
            self._supervisor.stdin.write(request)
            self._supervisor.stdin.flush()
            return self._supervisor.stdout.readline()
        except (OSError, ValueError):  # closed by another thread, or the supervisor is gone
            return b""
