"""How a local transaction waits for Kafka: a thread blocks; under an event loop only the task waits.

Under an event loop the library's code runs in SQLAlchemy's greenlet, where `await_only()` hands an awaitable to the
task that is outside. So there is one implementation for both worlds.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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


class EventLoopWaiting:
    """The calling task waits, and the event loop goes on; only inside SQLAlchemy's greenlet."""

    def until(self, tell: Callable[[Notify], None], seconds: float) -> bool:
        """Wait until the notification."""
        return await_only(_notified(tell, seconds))

    def pause(self, seconds: float) -> None:
        """Sleep."""
        await_only(asyncio.sleep(seconds))


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


class Budget:
    """The seconds that one call of the application may still wait for Kafka, and how it waits.

    Only time spent in the methods below counts: how long Postgres takes is not for `publish_timeout` to bound.

    Args:
        waiting: How to wait.
        seconds: How long, in all.
    """

    def __init__(self, waiting: Waiting, seconds: float) -> None:
        self._waiting = waiting
        self._left = seconds

    @property
    def is_spent(self) -> bool:
        """Whether no time is left."""
        return self._left <= 0

    def until(self, tell: Callable[[Notify], None], seconds: float = math.inf) -> bool:
        """Wait for a notification as `Waiting.until()`, for what is left or for so many seconds, whichever is less."""
        began = time.monotonic()
        try:
            return self._waiting.until(tell, min(self._left, seconds))
        finally:
            self._left -= time.monotonic() - began

    def pause(self, seconds: float) -> None:
        """Let a moment pass."""
        self._waiting.pause(seconds)
        self._left -= seconds

    def result(self, future: Future[T]) -> T:
        """Wait for a future's result, or raise its exception.

        Raises:
            TimeoutError: There was none in time.
        """
        if not future.done() and not self.until(lambda notify: future.add_done_callback(lambda _: notify())):
            raise TimeoutError
        return future.result()


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a thread of its own; asyncio's default executor belongs to the application."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who no longer waits does not end the thread

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)

    threading.Thread(target=run, name="outbox-wait", daemon=True).start()
    return await asyncio.wrap_future(future)
