"""Requests to the cluster, run one after another in one thread, so that no caller blocks inside librdkafka.

Callers with the same request share its result. A request continues to its own time limit when its caller stops waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from outbox.errors import UsageError

T = TypeVar("T")

_IDLE_SECONDS = 10.0


class Enquiries:
    """Runs functions in a thread that starts with the first one and ends after 10 s without any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._urgent: deque[tuple[Hashable, Callable[[], Any]]] = deque()
        self._patient: deque[tuple[Hashable, Callable[[], Any]]] = deque()
        self._open: dict[Hashable, Future[Any]] = {}
        self._closed = threading.Event()

    def ask(self, question: Hashable, function: Callable[[], T], *, urgent: bool = True) -> Future[T]:
        """Run a function; if the same question is pending, return its future instead.

        Args:
            function: Sends a request to the cluster; it has a time limit of its own.
            urgent: Whether a caller waits for the answer. Other questions are run after these.
        """
        with self._changed:
            if self._closed.is_set():
                raise UsageError("The outbox is closed. Create a new one.")
            if question in self._open:
                return self._open[question]
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="outbox-enquiries", daemon=True)
                thread.start()
                self._thread = thread
            future: Future[T] = Future()
            self._open[question] = future
            (self._urgent if urgent else self._patient).append((question, function))
            self._changed.notify()
        return future

    def closed(self, seconds: float = 0.0) -> bool:
        return self._closed.wait(seconds)

    def close(self) -> None:
        """Fail the pending questions. A running function continues to its end; its answer is dropped."""
        with self._changed:
            self._closed.set()
            self._changed.notify()
            self._urgent.clear()
            self._patient.clear()
            given_up, self._open = self._open, {}
        for future in given_up.values():
            future.set_exception(UsageError("The outbox is closed. Create a new one."))

    def _run(self) -> None:
        while (job := self._next()) is not None:
            question, function = job
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = function()
            except BaseException as raised:  # noqa: BLE001 - it is raised to the waiting caller
                error = raised
            with self._changed:
                future = self._open.pop(question, None)  # None after close()
            if future is None:
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)

    def _next(self) -> tuple[Hashable, Callable[[], Any]] | None:
        """Wait for the next question; return None to end the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._patient or self._closed.is_set(), _IDLE_SECONDS)
            for queue in (self._urgent, self._patient):
                if queue:
                    return queue.popleft()
            self._thread = None
            return None
