"""Recorders: a protocol through which the library reports its work, for metrics.

`outbox.prometheus.PrometheusRecorder` is the implementation for Prometheus.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:  # table mode has none
    from outbox.listener import LocalTransactionState

log = logging.getLogger("outbox")


class CommitOutcome(enum.StrEnum):
    """How a local transaction with messages ended, as far as this process observed."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"
    FENCED = "fenced"


class Recorder(Protocol):
    """Receives events of an `Outbox`; several outboxes may share one recorder.

    The methods are called while transactions wait, so they must return at once. Several threads call them at a time.
    The first exception is logged; none is raised to the caller. `service` is the name of the service.
    """

    def messages_published(self, service: str, count: int) -> None:
        """Record messages that `publish()` accepted. They may still be rolled back."""

    def halves_acked(self, service: str, count: int, seconds: float) -> None:
        """Record that Kafka acknowledged all halves of a transaction.

        Args:
            seconds: Time from sending the first to the acknowledgement of the last.
        """

    def transaction_ended(self, service: str, outcome: CommitOutcome) -> None:
        """Record the end of a local transaction with at least one message, once per transaction."""

    def ops_dropped(self, service: str, count: int) -> None:
        """Record op markers that did not reach Kafka; the checker will decide."""

    def check_answered(self, service: str, state: LocalTransactionState) -> None:
        """Record the answer to a check request."""

    def table_looked_at(self, service: str, unowned_seconds: int) -> None:
        """Record a look whether a relay delivers the message table, in table mode, at most once a minute.

        Args:
            unowned_seconds: Age of its oldest row if no relay has delivered it at two looks in a row; else 0.
        """

    def circuit_opened(self, service: str) -> None:
        """Record that Kafka does not answer: publications fail at once from now on."""

    def circuit_closed(self, service: str) -> None:
        """Record that Kafka answers again: publications are sent again from now on."""


class NoRecorder:
    """Records nothing: the default."""

    def messages_published(self, service: str, count: int) -> None:
        """Do nothing."""

    def halves_acked(self, service: str, count: int, seconds: float) -> None:
        """Do nothing."""

    def transaction_ended(self, service: str, outcome: CommitOutcome) -> None:
        """Do nothing."""

    def ops_dropped(self, service: str, count: int) -> None:
        """Do nothing."""

    def check_answered(self, service: str, state: LocalTransactionState) -> None:
        """Do nothing."""

    def table_looked_at(self, service: str, unowned_seconds: int) -> None:
        """Do nothing."""

    def circuit_opened(self, service: str) -> None:
        """Do nothing."""

    def circuit_closed(self, service: str) -> None:
        """Do nothing."""


class GuardedRecorder:
    """Calls a recorder and catches its exceptions, so that they never fail a transaction."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._has_failed = False

    def __getattr__(self, method: str) -> Callable[..., None]:
        """Return a method of the recorder, which never raises."""
        return partial(self._call, method)

    def _call(self, method: str, *arguments: object) -> None:
        try:
            getattr(self._recorder, method)(*arguments)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                log.exception("Recorder failed, its metrics are incomplete; further failures are not logged")


def guarded(recorder: Recorder | None) -> Recorder:
    """Return a recorder that never raises; one that records nothing for None."""
    return NoRecorder() if recorder is None else cast("Recorder", GuardedRecorder(recorder))
