"""Pauses of a table source between two turns: it polls, or waits for notifications of commits."""

import time
from collections.abc import Callable

from outbox._postgres.notifications import Notifications
from relay import metrics

IDLE_MIN_SECONDS = 0.001
IDLE_MAX_SECONDS = 0.05
"""Pause between two looks at an empty table; it doubles up to this."""

BEGIN_SECONDS = 0.008
"""A source waits for notifications once its pause has grown to this. Where rows come faster, notifications would save
little time, and slow the commits."""

REST_SECONDS_EACH = 0.0005
REST_SECONDS_MAX = 0.05
"""Pause after a window that was not full, for each row but one, up to this. A small Kafka transaction costs the broker
milliseconds, whatever it holds: many messages wait for company, and one alone does not."""

NOTIFIED_SECONDS = 1.0
"""Pause between two looks at an empty table while commits are notified: what a lost notification costs at most."""

LOOK_SECONDS = 60.0
"""Pause before it is looked again whether a table without the trigger has got it."""


def rest(rows: int) -> float:
    """Return the pause after a window of so many rows, seconds."""
    return min(REST_SECONDS_EACH * max(rows - 1, 0), REST_SECONDS_MAX)


class Pauses:
    """Pauses of one table source.

    Args:
        stopping: Waits for so many seconds; returns whether to stop.
    """

    def __init__(self, source: str, notifications: Notifications, stopping: Callable[[float], bool]) -> None:
        self._notifications = notifications
        self._stopping = stopping
        self._wake_ups = {cause: metrics.TABLE_WAKE_UPS.labels(source, cause) for cause in metrics.WAKE_UP_CAUSES}
        self._idle = IDLE_MIN_SECONDS
        self._cause = ""
        self._is_notified = False
        self._look_at = 0.0

    def first(self) -> bool:
        """Pause before the first turn; return whether to stop."""
        return self._stopping(IDLE_MIN_SECONDS)

    def after(self, *, found: bool, waiting: bool, seconds: float) -> bool:
        """Pause after a turn; return whether to stop.

        Args:
            found: Whether there was anything to do.
            waiting: Whether rows wait for Kafka, which sends no notification.
            seconds: Pause if there was anything to do.
        """
        if not self._is_notified:
            self._notifications.drop()
        if found:
            self._end()
            self._count()
            self._idle = IDLE_MIN_SECONDS
            return self._stopping(seconds)
        if waiting:
            self._end()
            return self._poll()
        if self._is_notified:
            return self._wait()
        self._is_notified = self._begin()
        return self._stopping(0) if self._is_notified else self._poll()  # what was committed before is read first

    def _begin(self) -> bool:
        if self._idle < BEGIN_SECONDS or time.monotonic() < self._look_at:
            return False
        has_begun = self._notifications.try_begin()
        if has_begun is None:
            self._look_at = time.monotonic() + LOOK_SECONDS
        return bool(has_begun)

    def _wait(self) -> bool:
        self._cause = metrics.POLL
        if self._notifications.wait(NOTIFIED_SECONDS, self._stopping):
            self._cause = metrics.NOTIFICATION
            self._end()
        return self._stopping(0)

    def _end(self) -> None:
        if self._is_notified:
            self._notifications.end()
            self._is_notified = False

    def _poll(self) -> bool:
        self._cause = metrics.POLL
        pause, self._idle = self._idle, min(2 * self._idle, IDLE_MAX_SECONDS)
        return self._stopping(pause)

    def _count(self) -> None:
        if self._cause:
            self._wake_ups[self._cause].inc()
            self._cause = ""
