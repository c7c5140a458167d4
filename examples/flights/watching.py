"""The demo's end: `outbox console` on the servers that the demo leaves, until Ctrl-C; without a terminal one look."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from http.cookiejar import CookieJar
from pathlib import Path

from examples.flights.printing import console, say
from examples.flights.publishing import wait_until

_ADDRESS = re.compile(r"http://\S+/login\?key=\S+")
_START_SECONDS = 30.0


def show_console(folder: Path, environ: Mapping[str, str]) -> None:
    """Start a console and print its address; end it on Ctrl-C, without a terminal after one look."""
    log = folder / "console.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "outbox", "console", "--listen", f"127.0.0.1:{_free_port()}"]
        process = subprocess.Popen(command, env=dict(environ), stdout=output, stderr=output)
    try:
        wait_until(lambda: _answers(log), _START_SECONDS, f"the console does not answer, {log} says why")
        say(f"what waits, and where a message is: {_address(log)}")
        if sys.stdin.isatty():
            console.print("Ctrl-C ends the console, Kafka and Postgres.")
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()
    finally:
        process.terminate()
        process.wait(_START_SECONDS)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _address(log: Path) -> str:
    found = _ADDRESS.search(log.read_text())
    return found[0] if found else ""


def _answers(log: Path) -> bool:
    """Log in with the printed address, and see what the first page says of the message tables."""
    address = _address(log)
    if not address:
        return False
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    try:
        return b"Table sources" in browser.open(address, timeout=_START_SECONDS).read()
    except OSError:
        return False
