"""One step's process: it is ended with everything that it started, also when the run is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_GRACE_SECONDS = 30.0
"""A step that is asked to end stops its servers, and is killed if it has not by then; its servers end with it."""


def run_step(arguments: list[str], log: Path, seconds: float) -> str | None:
    """Run Python with arguments until it ends.

    Args:
        arguments: Of the interpreter.
        seconds: It is ended if it takes longer.

    Returns:
        Why it did not end as it should; None if it did.
    """
    # In a session of its own, so that Ctrl-C does not reach it and its relays in an order of chance.
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s"
        finally:
            _end(process)
    return f"ended with {code}: {_last_line(log)}" if code else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step, and what it leaves behind of its process group; at once if Ctrl-C comes a second time."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
    finally:
        with suppress(ProcessLookupError):  # nothing is left
            os.killpg(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = [line.strip("│ ") for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if any(map(str.isalnum, line))), "it said nothing")
