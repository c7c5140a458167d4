"""What the library tells about its work: a small protocol that an application implements, or takes from an extra.

`outbox.prometheus.PrometheusRecorder` is the implementation for Prometheus.
"""

from __future__ import annotations

import enum
import logging
from typing import Protocol

from outbox.listener import LocalTransactionState

log = logging.getLogger("outbox")


class CommitOutcome(enum.StrEnum):
    """How a local transaction with messages ended, as far as this process knows."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"
    FENCED = "fenced"


class Recorder(Protocol):
    """Hears what an `Outbox` does; one recorder may serve several.

    The methods are called while transactions wait: return at once. They are called from several threads at a time.
    What they raise is logged once and goes no further. `group` is the producer group.
    """

    def messages_published(self, group: str, count: int) -> None:
        """Messages were accepted: `publish()` is about to return. They may still be rolled back.

        Args:
            group: Producer group.
            count: How many.
        """

    def halves_acked(self, group: str, count: int, seconds: float) -> None:
        """Kafka acknowledged all halves that were sent together.

        Args:
            group: Producer group.
            count: How many.
            seconds: From the sending of the first to the acknowledgement of the last.
        """

    def transaction_ended(self, group: str, outcome: CommitOutcome) -> None:
        """A local transaction with at least one message ended; once for each.

        Args:
            group: Producer group.
            outcome: How.
        """

    def ops_dropped(self, group: str, count: int) -> None:
        """Op markers did not reach Kafka; the checker will decide.

        Args:
            group: Producer group.
            count: How many.
        """

    def check_answered(self, group: str, state: LocalTransactionState) -> None:
        """A check request was answered.

        Args:
            group: Producer group.
            state: With what.
        """

    def circuit_opened(self, group: str) -> None:
        """Kafka does not answer: publications fail at once from now on.

        Args:
            group: Producer group.
        """

    def circuit_closed(self, group: str) -> None:
        """Kafka answers again: publications are sent again from now on.

        Args:
            group: Producer group.
        """


class NoRecorder:
    """Hears nothing: the default."""

    def messages_published(self, group: str, count: int) -> None:
        """Nothing."""

    def halves_acked(self, group: str, count: int, seconds: float) -> None:
        """Nothing."""

    def transaction_ended(self, group: str, outcome: CommitOutcome) -> None:
        """Nothing."""

    def ops_dropped(self, group: str, count: int) -> None:
        """Nothing."""

    def check_answered(self, group: str, state: LocalTransactionState) -> None:
        """Nothing."""

    def circuit_opened(self, group: str) -> None:
        """Nothing."""

    def circuit_closed(self, group: str) -> None:
        """Nothing."""


class GuardedRecorder:
    """Keeps the errors of a recorder away from transactions.

    Args:
        recorder: Whom to tell.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._complained = False

    def messages_published(self, group: str, count: int) -> None:
        """Tell the recorder."""
        self._tell("messages_published", group, count)

    def halves_acked(self, group: str, count: int, seconds: float) -> None:
        """Tell the recorder."""
        self._tell("halves_acked", group, count, seconds)

    def transaction_ended(self, group: str, outcome: CommitOutcome) -> None:
        """Tell the recorder."""
        self._tell("transaction_ended", group, outcome)

    def ops_dropped(self, group: str, count: int) -> None:
        """Tell the recorder."""
        self._tell("ops_dropped", group, count)

    def check_answered(self, group: str, state: LocalTransactionState) -> None:
        """Tell the recorder."""
        self._tell("check_answered", group, state)

    def circuit_opened(self, group: str) -> None:
        """Tell the recorder."""
        self._tell("circuit_opened", group)

    def circuit_closed(self, group: str) -> None:
        """Tell the recorder."""
        self._tell("circuit_closed", group)

    def _tell(self, method: str, *what: object) -> None:
        try:
            getattr(self._recorder, method)(*what)
        except Exception:
            if not self._complained:
                self._complained = True
                log.exception("the recorder failed; this is said once, and what it does not hear is not counted")


def guarded(recorder: Recorder | None) -> Recorder:
    """A recorder that never raises; one that hears nothing in place of None."""
    return NoRecorder() if recorder is None else GuardedRecorder(recorder)
