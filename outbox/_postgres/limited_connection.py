"""A connection to Postgres on which no call waits without limit (R79)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that is given up when nothing comes or goes on it for a time although a call waits.

    A line may be dead although no end of it is seen, and the server's process may be frozen: libpq would wait for ever.
    """

    silent_seconds: float = math.inf
    """The time; more than the server lets a statement take."""

    watch: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Has each call watched; what it yields, if anything, has `progressed()`."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """See psycopg: it waits here for whatever it needs of the server."""
        with self.watch() as call:
            return super().wait(self._limited(gen, call), *args, **options)

    def _limited(self, steps: Generator[Any, Any, Any], call: Any) -> Generator[Any, Any, Any]:
        since, ready = time.monotonic(), None
        while True:
            try:
                wanted = steps.send(ready)
            except StopIteration as end:
                return end.value
            ready = yield wanted
            if ready:
                since = time.monotonic()
                if call is not None:
                    call.progressed()
            elif time.monotonic() - since > self.silent_seconds:
                pid = self.info.backend_pid
                self.close()
                raise psycopg.OperationalError(
                    f"Postgres has not answered for {self.silent_seconds:.0f} s: the session, of pid {pid}, is given up"
                )
