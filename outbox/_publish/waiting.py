"""Wait for Kafka, in a thread or in a task of an event loop, with one implementation for both.

Under an event loop the library's code runs in SQLAlchemy's greenlet, where `await_only()` passes an awaitable to the
task that runs the greenlet.
"""

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
    """A way to wait: it blocks the calling thread, or only the calling task."""

    def until(self, register: Callable[[Notify], None], seconds: float) -> bool:
        """Call `register(notify)`, and wait until any thread calls `notify`, once; return if that was in `seconds`."""

    def pause(self, seconds: float) -> None:
        """Sleep."""


class BlockingWaiting:
    """Blocks the calling thread."""

    def until(self, register: Callable[[Notify], None], seconds: float) -> bool:
        happened = threading.Lock()  # cheaper than an Event, which is four objects and a second lock
        happened.acquire()
        register(happened.release)
        return happened.acquire(timeout=max(0.0, seconds))

    def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)


class EventLoopWaiting:
    """Suspends the calling task, not the event loop; only inside SQLAlchemy's greenlet."""

    def until(self, register: Callable[[Notify], None], seconds: float) -> bool:
        return await_only(_notified(register, seconds))

    def pause(self, seconds: float) -> None:
        await_only(asyncio.sleep(seconds))


async def _notified(register: Callable[[Notify], None], seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop was closed, so no task waits
            loop.call_soon_threadsafe(happened.set)

    register(notify)
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await happened.wait()
    except TimeoutError:
        return False
    return True


BLOCKING = BlockingWaiting()
EVENT_LOOP = EventLoopWaiting()


class Budget:
    """The time that one call of the application may still wait for Kafka.

    Only time spent in the methods below counts: `publish_timeout_seconds` does not limit Postgres.
    """

    def __init__(self, waiting: Waiting, seconds: float) -> None:
        self._waiting = waiting
        self._left = seconds

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def until(self, register: Callable[[Notify], None], seconds: float = math.inf) -> bool:
        """Wait for a notification as `Waiting.until()`, for the rest of the budget or `seconds`, whichever is less."""
        began = time.monotonic()
        try:
            return self._waiting.until(register, min(self._left, seconds))
        finally:
            self._left -= time.monotonic() - began

    def pause(self, seconds: float) -> None:
        """Sleep, and subtract the time from the budget."""
        self._waiting.pause(seconds)
        self._left -= seconds

    def result(self, future: Future[T]) -> T:
        if not future.done() and not self.until(lambda notify: future.add_done_callback(lambda _: notify())):
            raise TimeoutError
        return future.result()


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a new thread; asyncio's default executor is left to the application."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # cancelling the task does not stop the thread

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised to the awaiting task
            future.set_exception(error)

    threading.Thread(target=run, name="outbox-wait", daemon=True).start()
    return await asyncio.wrap_future(future)
