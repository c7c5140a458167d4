"""Log lines of librdkafka, on their way into the logger `outbox`: rate limited, as an outage brings 20 a second."""

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from outbox._kafka.forks import follow

log = logging.getLogger("outbox")

EACH_SECONDS = 30.0
"""Of lines of one kind, one is logged in this time, with the number of the others."""

_KINDS = 256
_VARYING = re.compile(r"\d+")


class Repeats:
    """Counts lines that are like others of a moment ago, and are not logged. Threads share it."""

    def __init__(self) -> None:
        self.start_afresh()
        follow(self)

    def start_afresh(self) -> None:
        """Have logged nothing yet."""
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # s, monotonic, and how many were passed since

    def passed(self, about: str, text: str) -> int | None:
        """Count a line; return how many of its kind were passed since the last one, None if it is to be passed, too.

        Args:
            about: What it is about: lines are alike only if this is equal.
            text: The line; numbers in it do not count.
        """
        kind, now = (about, _VARYING.sub("#", text)), time.monotonic()
        with self._lock:
            at, passed = self._kinds.get(kind, (now - EACH_SECONDS, 0))
            if now < at + EACH_SECONDS:
                self._kinds[kind] = (at, passed + 1)
                return None
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            self._kinds[kind] = (now, 0)
            return passed


def is_first_wait(facility: str, text: str, since: float) -> bool:
    """Return whether a client, which is there since then, waits for its coordinator: a new cluster has none yet."""
    return facility == "GETPID" and text.endswith("retrying") and time.monotonic() < since + EACH_SECONDS


class ClientLog:
    """Takes librdkafka's lines in place of a `logging.Logger`; clients and threads share it.

    A client hands its lines over when it is polled.
    """

    def __init__(self, logger: logging.Logger = log) -> None:
        self._logger = logger
        self._repeats = Repeats()
        self._since: dict[str, float] = {}  # s, monotonic, by client: its first wait for a coordinator

    def log(self, level: int, _form: str, facility: str, client: str, text: str) -> None:
        """Log a line, unless one of its kind was logged a moment ago. Called by confluent-kafka."""
        since = self._since.setdefault(client, time.monotonic()) if facility == "GETPID" else 0.0
        # CONFWARN: a property of another kind of client, given for all of them
        if facility == "CONFWARN" or is_first_wait(facility, text, since):
            level = logging.DEBUG
        passed = self._repeats.passed(facility, text)
        if passed is not None:
            more = f" ({passed} more lines like it since the last one)" if passed else ""
            self._logger.log(level, "librdkafka %s [%s] %s%s", facility, client, text, more)


_shared = ClientLog()


def logged(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka properties with a logger in them, unless the user gave one."""
    return {"logger": _shared, **kafka}
