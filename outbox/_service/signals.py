"""SIGTERM, SIGINT and SIGHUP set a flag, and nothing else: a handler that raises would throw away fetched messages.

A second signal sets it again, which changes nothing.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stop_on_signals() -> threading.Event:
    """Return an event that is set when the process is asked to stop."""
    stop = threading.Event()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop


def reload_on_signal() -> threading.Event:
    """Return an event that is set when the process is asked to read its configuration again (SIGHUP)."""
    wanted = threading.Event()
    signal.signal(signal.SIGHUP, lambda _signal, _frame: wanted.set())
    return wanted
