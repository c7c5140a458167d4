"""The calls to servers that are under way: one that takes long is a line of the log, with what it does (R79)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import structlog

from outbox._service.channels.channel_context import current_channel
from outbox._service.periodic import Periodic

LONG_SECONDS = 5.0
"""A call that has taken longer without any progress is logged, once."""

LOOK_SECONDS = 0.5

log = structlog.get_logger()


class Wake(NamedTuple):
    """What makes librdkafka go on with a call that it would wait in without any time limit."""

    after: float  # seconds of the call from which on it is done, again and again
    call: Callable[[], None]  # does it, in another thread


class Call:
    """A call that is under way."""

    def __init__(self, what: str, wake: Wake | None, server: str) -> None:
        self.what, self.line = what, f"{server} does not answer a call"
        self.wake = wake
        self.channel = current_channel()
        self.thread = threading.current_thread().name
        self.is_logged = False
        self.progressed()

    def progressed(self) -> None:
        """Count its time from now on: something came of it."""
        self.since = time.monotonic()


_open: dict[int, Call] = {}  # of each thread: the innermost


@contextmanager
def calling(what: str, wake: Wake | None = None, server: str = "Kafka") -> Iterator[Call]:
    """Have the block watched."""
    thread = threading.get_ident()
    outer, call = _open.get(thread), Call(what, wake, server)
    _open[thread] = call
    try:
        yield call
    finally:
        if outer is None:
            del _open[thread]
        else:
            _open[thread] = outer


def overdue(thread: int | None) -> str:
    """Return for which call a thread has waited long without any progress; empty: for none."""
    call = _open.get(thread or 0)
    return "" if call is None or time.monotonic() < call.since + LONG_SECONDS else f"{call.line}: {call.what}"


def look(channel: str) -> None:
    """Wake and log the calls of a channel that take long."""
    now = time.monotonic()
    for call in [call for call in tuple(_open.values()) if call.channel == channel]:
        if call.wake is not None and now - call.since >= call.wake.after:
            call.wake.call()
        if now - call.since >= LONG_SECONDS and not call.is_logged:
            call.is_logged = True
            seconds = round(now - call.since, 1)
            log.warning(call.line, call=call.what, thread=call.thread, seconds=seconds)


def watch_calls() -> Periodic:
    """Return what looks at the calls of this thread's channel again and again; not started yet."""
    channel = current_channel()
    return Periodic("calls", lambda: look(channel), LOOK_SECONDS)
