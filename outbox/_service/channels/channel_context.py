"""The channel that a thread works for: a field of its log lines, and a label of its metrics.

A thread does not inherit it: what makes a thread for a channel hands the name on.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

import structlog

_channel: ContextVar[str] = ContextVar("channel", default="")


def enter_channel(name: str) -> None:
    """Let this thread work for a channel from now on; without a name, for the process as a whole."""
    if name:
        _channel.set(name)
        structlog.contextvars.bind_contextvars(channel=name)


@contextmanager
def in_channel(name: str) -> Iterator[None]:
    """Let this thread work for a channel within the block."""
    token = _channel.set(name)
    try:
        with structlog.contextvars.bound_contextvars(channel=name):
            yield
    finally:
        _channel.reset(token)


def current_channel() -> str:
    """Return the name of the channel that this thread works for; empty: for the process as a whole."""
    return _channel.get()


def thread_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, initializer=enter_channel, initargs=(current_channel(),))
