"""Cancels a task at a chosen suspension: what asyncio may do at any moment, done at every one of them in turn."""

import asyncio
import enum
from collections.abc import Collection, Coroutine, Generator
from typing import Any


class When(enum.Enum):
    """When a task is cancelled that has begun to wait for something."""

    WAITING = "before it happened"
    WOKEN = "after it happened, and before the task heard of it"


class Cancelling:
    """An awaitable that runs a coroutine and cancels its task at chosen suspensions, counted from 1."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], suspensions: Collection[int], when: When = When.WAITING
    ) -> None:
        self.count = 0
        self._coroutine = coroutine
        self._suspensions = suspensions
        self._when = when

    def __await__(self) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        while True:
            try:
                awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration:
                return
            self.count += 1
            if self.count in self._suspensions:
                self._cancel(awaited)
            try:
                yield awaited
                error = None
            except BaseException as thrown:  # noqa: BLE001 - it is handed on
                error = thrown

    def _cancel(self, awaited: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._when is When.WAITING or not isinstance(awaited, asyncio.Future):
            task.cancel()
        else:
            # Before the task's own callback: it is woken with a result, and a cancellation instead of it.
            awaited.add_done_callback(lambda _done: task.cancel())
