"""Failpoints: named places where a test kills the process with SIGKILL. Without the variable they do nothing.

`OUTBOX_FAILPOINT=relay.flushed:3` kills the process the third time that it passes `relay.flushed`;
`relay.flushed:3:stop` stops it there until it receives SIGCONT, and `relay.flushed:3:raise` raises an unforeseen
error. Failpoints are passed per batch or per transaction, never per message. The signal goes to the thread that
passes: sent to the process, another thread may take it, and this one would run on for a while.
"""

import os
import signal
import threading

VARIABLE = "OUTBOX_FAILPOINT"

_name, _, _rest = os.environ.get(VARIABLE, "").partition(":")
_hits, _, _what = _rest.partition(":")
_signal = signal.SIGSTOP if _what == "stop" else signal.SIGKILL
_left = int(_hits or 1)
_lock = threading.Lock()


def failpoint(name: str) -> None:
    """Kill or stop the process if OUTBOX_FAILPOINT names this failpoint."""
    if name == _name:
        _hit()


def _hit() -> None:
    global _left  # noqa: PLW0603 - one counter for one process
    with _lock:
        _left -= 1
        if _left == 0 and _what == "raise":
            raise RuntimeError(f"failpoint {_name}")
        if _left == 0:
            signal.pthread_kill(threading.get_ident(), _signal)
