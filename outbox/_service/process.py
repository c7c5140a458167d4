"""How a process of a service takes signals, and treats memory.

SIGTERM and SIGINT set a flag, and nothing else: a handler that raises would throw away fetched messages. A
second signal sets it again, which changes nothing.
"""

import ctypes
import gc
import platform
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


_M_ARENA_MAX = -8
"""Of mallopt(3)."""

_OBJECTS = 50_000
"""More of them than went between two looks for garbage: about 20 MB, if all of it were some."""


def share_one_arena() -> bool:
    """Let all threads allocate from one arena; call it before there are any.

    What librdkafka's threads queue, and the reading thread frees, else scatters over many arenas, none of which can
    shrink.

    Returns:
        Whether the C library is glibc, and took it.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1))


def collect_rarely() -> None:
    """Look for garbage in cycles rarely, and never among what is there already; call it once all modules are imported.

    Python looks after each 700 objects. A service that reads 10,000s of records a second makes so many objects that
    live on for a while that this takes a tenth of its time; there is hardly a cycle among them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS)
