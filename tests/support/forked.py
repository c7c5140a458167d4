"""Start `python -m outbox …` as a fork of a process that has imported it: imports are most of what a start costs.

What the fork runs is the command's own `main()`, in a process of its own. Only variables of the project may differ from
those of this process: others are read while Python starts, or by modules that are imported already.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from outbox import _failpoints

OTHERS = ("audit", "land", "replay")
"""Commands that are not imported before: they start a JVM, and few tests run them."""

CONSTANTS = "OUTBOX_TEST_CONSTANTS"
"""Variable with other values of constants, such as intervals that a test would wait for; by their full names."""

enabled = False
"""Whether processes are forked at all: the integration tests turn it on, benchmarks measure processes of their own."""

PAUSE_SECONDS = 0.01
TIMEOUT_SECONDS = 60.0


class Forked(subprocess.Popen[bytes]):
    """A fork, which its keeper waits for: the keeper leaves the exit code in a file."""

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], output: Path, errors: Path, typed: str = ""
    ) -> None:
        self.args = [sys.executable, "-m", "outbox", *words]
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._ended = output.with_name(output.name + ".exit")
        self._child_created = False  # nothing for Popen to wait for
        output.touch()  # it may be read before the command has begun
        files = {"output": str(output), "errors": str(errors), "ended": str(self._ended)}
        self.pid = _server().start({"words": list(words), "environ": dict(environ), "typed": typed, **files})

    def poll(self) -> int | None:
        if self.returncode is None and self._ended.exists():
            self.returncode = int(self._ended.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(PAUSE_SECONDS)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)


def may_fork(environ: Mapping[str, str]) -> bool:
    """Return whether an environment differs from this process's only in what is read at run time."""
    if not enabled:
        return False
    differ = {name for name, _ in set(environ.items()) ^ set(os.environ.items())}
    return all(name.startswith("OUTBOX_") or name == "COLUMNS" for name in differ)


def run_outbox(words: Sequence[str], environ: Mapping[str, str], typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run `outbox …` to its end, for a minute at most."""
    if not may_fork(environ):
        command = [sys.executable, "-m", "outbox", *words]
        return subprocess.run(
            command, env=environ, input=typed, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        running = Forked(words, environ, output, errors, typed)
        try:
            code = running.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            raise
        return subprocess.CompletedProcess(running.args, code, output.read_text(), errors.read_text())


class _Server:
    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.forked"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lock = threading.Lock()
        atexit.register(self._process.communicate)  # the end of its input ends it

    def start(self, order: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


@cache
def _server() -> _Server:
    return _Server()


def _serve() -> None:
    for command in entry_points(group="outbox.commands"):
        if command.name not in OTHERS:
            command.load()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end the services
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave nothing to wait for
    for line in iter(sys.stdin.readline, ""):
        if os.fork() == 0:
            _keep(json.loads(line))


def _keep(order: Mapping[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _run(order)
    os.write(1, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    ended = Path(order["ended"])
    written = ended.with_name(ended.name + ".part")
    written.write_text(str(os.waitstatus_to_exitcode(status)))
    written.rename(ended)
    os._exit(0)


def _run(order: Mapping[str, Any]) -> None:
    """Become the command; it ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    typed, end = os.pipe()
    os.write(end, order["typed"].encode())
    os.close(end)
    os.dup2(typed, 0)
    for number, name in ((1, order["output"]), (2, order["errors"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the other one is the server's, and has read ahead
    os.environ.clear()
    os.environ.update(order["environ"])
    importlib.reload(_failpoints)  # it reads its variable when it is imported
    for name, value in json.loads(os.environ.pop(CONSTANTS, "{}")).items():
        module, _, constant = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), constant), type(value)), name
        setattr(importlib.import_module(module), constant, value)
    sys.argv = ["outbox", *order["words"]]
    runpy.run_module("outbox", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
