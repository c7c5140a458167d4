"""A small process between a `Stack` and its servers: when the stack's process ends, in any way, so do they.

It is run by path with nothing but the standard library, so that it is up in milliseconds. It reads requests as lines
of JSON and answers each with one line. It ends when its input ends or its parent is gone; then it kills every process
below it and removes the folder that it was given.

Requests: `{"do": "start", "name": …, "argv": […], "env": {…}, "log": path, "user": [uid, gid] or null}`,
`{"do": "signal", "name": …, "number": n}`, `{"do": "ask", "name": …}`. The answer is
`{"ended": return code or null, "others": n}` or `{"error": text}`; *others* counts processes that a killed server left
behind and that are not gone yet.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

_TICK_SECONDS = 0.2
_GRACE_SECONDS = 2.0

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Supervisor:
    """The processes that were started, by name."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._codes: dict[str, int] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["name"]
        self.reap()
        if request["do"] == "start":
            self._codes.pop(name, None)
            self._running[name] = _spawn(request)
        elif request["do"] == "signal" and name in self._running:
            os.kill(self._running[name], request["number"])
        # A process that never was has ended well.
        ended = None if name in self._running else self._codes.get(name, 0)
        return {"ended": ended, "others": len(self._orphans())}

    def reap(self) -> None:
        """Note who ended, and kill what ended servers left behind.

        As the reaper of its descendants this process inherits them: a Postgres backend sits in a session of its own
        and would outlive its killed postmaster while it is busy.
        """
        for pid in self._orphans():
            _kill(pid, signal.SIGKILL)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name in [name for name, running in self._running.items() if running == pid]:
                del self._running[name]
                self._codes[name] = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Kill everything below this process and wait until it is gone."""
        for pid in _children():
            # Postgres takes its backends along on SIGQUIT; Java would write a thread dump and live on.
            _kill(pid, signal.SIGQUIT if _is_postgres(pid) else signal.SIGKILL)
        deadline = time.monotonic() + _GRACE_SECONDS
        while _children():
            if time.monotonic() > deadline:
                for pid in _children():
                    _kill(pid, signal.SIGKILL)
            self._wait_for_any()

    def _wait_for_any(self) -> None:
        self.reap()
        time.sleep(0.01)

    def _orphans(self) -> list[int]:
        known = set(self._running.values())
        return [pid for pid in _children() if pid not in known]


def main() -> None:
    """Serve until the input ends or the parent is gone."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    parent = os.getppid()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = Supervisor()
    try:
        _serve(supervisor, parent)
    finally:
        supervisor.end()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _serve(supervisor: Supervisor, parent: int) -> None:
    rest = b""
    # The parent's id is watched too: a fork of the parent may hold the pipe open after the parent's death.
    while os.getppid() == parent:
        if not select.select([0], [], [], _TICK_SECONDS)[0]:
            supervisor.reap()
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _reply(supervisor, line)


def _reply(supervisor: Supervisor, line: bytes) -> None:
    try:
        answer = supervisor.answer(json.loads(line))
    except OSError as error:
        answer = {"error": str(error)}
    os.write(1, json.dumps(answer).encode() + b"\n")


def _spawn(request: dict[str, Any]) -> int:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pid = os.fork()
    if pid:
        os.close(log)
        return pid
    try:
        _become(request, log)
    except BaseException as error:  # noqa: BLE001 - the copy of the supervisor must never return into its loop
        os.write(log, f"cannot run {request['argv'][0]}: {error}\n".encode())
    os._exit(127)


def _become(request: dict[str, Any], log: int) -> None:
    """Turn the forked copy into the server."""
    os.setsid()
    # Python ignores this signal, and what is ignored stays so in the program that follows.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if request["user"] is not None:
        uid, gid = request["user"]
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # Set after the change of user, which clears it: should this supervisor be killed, the server goes too.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.execve(request["argv"][0], request["argv"], request["env"])  # noqa: S606 - no shell is the point


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except FileNotFoundError:  # not every kernel has this list; the long way is to ask every process
        return [pid for pid in _all_processes() if _parent(pid) == os.getpid()]


def _all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _parent(pid: int) -> int:
    try:
        # After the name in brackets, which may hold anything: state, parent, …
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _is_postgres(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
    except OSError:
        return False


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit)
    main()
