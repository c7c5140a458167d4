"""How a local transaction waits for Kafka: a thread blocks; under an event loop only the task waits.

Under an event loop the library's code runs in SQLAlchemy's greenlet, where `await_only()` hands an awaitable to the
task that is outside. So there is one implementation for both worlds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from sqlalchemy.util import await_only

T = TypeVar("T")

Notify = Callable[[], None]


class Waiting(Protocol):
    """How to wait without holding up anybody else."""

    def until(self, tell: Callable[[Notify], None], seconds: float) -> bool:
        """Wait until `tell(notify)` has led to a call of `notify`, at most one, from any thread.

        Returns:
            Whether that was within so many seconds.
        """

    def pause(self, seconds: float) -> None:
        """Let a moment pass."""

    def call(self, function: Callable[[], T]) -> T:
        """Call a function that may wait for Kafka by itself."""


class BlockingWaiting:
    """The calling thread waits."""

    def until(self, tell: Callable[[Notify], None], seconds: float) -> bool:
        """Wait until the notification."""
        happened = threading.Lock()  # a bare lock: an Event is four objects and a second lock
        happened.acquire()
        tell(happened.release)
        return happened.acquire(timeout=max(0.0, seconds))

    def pause(self, seconds: float) -> None:
        """Sleep."""
        threading.Event().wait(seconds)

    def call(self, function: Callable[[], T]) -> T:
        """Call it here."""
        return function()


class EventLoopWaiting:
    """The calling task waits, and the event loop goes on; only inside SQLAlchemy's greenlet."""

    def until(self, tell: Callable[[Notify], None], seconds: float) -> bool:
        """Wait until the notification."""
        return await_only(_notified(tell, seconds))

    def pause(self, seconds: float) -> None:
        """Sleep."""
        await_only(asyncio.sleep(seconds))

    def call(self, function: Callable[[], T]) -> T:
        """Call it in a thread; if the task is cancelled, the thread goes on by itself to its own time limit."""
        return await_only(asyncio.to_thread(function))


async def _notified(tell: Callable[[Notify], None], seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(happened.set)

    tell(notify)
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await happened.wait()
    except TimeoutError:
        return False
    return True


BLOCKING = BlockingWaiting()
EVENT_LOOP = EventLoopWaiting()
