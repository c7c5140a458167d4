"""The states of an outbox's circuit breaker, and the pauses between its probes."""

from __future__ import annotations

import enum


class CircuitState(enum.StrEnum):
    """State of the circuit."""

    CLOSED = "closed"  # halves are sent
    OPEN = "open"  # no half is sent; the cluster is probed in the background
    HALF_OPEN = "half-open"  # a probe has succeeded; the next transaction tries to send its halves
    TRIAL = "trial"  # one transaction tries to send its halves, all others send none


class CircuitEvent(enum.StrEnum):
    """What can happen to the circuit."""

    FAILED = "Kafka did not answer in time"
    PROBED = "a probe succeeded, and one transaction shall try next"
    TRIED = "a transaction begins to try"
    ANSWERED = "Kafka acknowledged the halves of the trial; in half mode: a probe succeeded"
    ABANDONED = "the trial ended without an answer of Kafka"


TRANSITIONS: dict[tuple[CircuitState, CircuitEvent], CircuitState] = {
    (CircuitState.CLOSED, CircuitEvent.FAILED): CircuitState.OPEN,
    (CircuitState.OPEN, CircuitEvent.ANSWERED): CircuitState.CLOSED,
    (CircuitState.OPEN, CircuitEvent.PROBED): CircuitState.HALF_OPEN,
    (CircuitState.HALF_OPEN, CircuitEvent.TRIED): CircuitState.TRIAL,
    (CircuitState.TRIAL, CircuitEvent.ANSWERED): CircuitState.CLOSED,
    (CircuitState.TRIAL, CircuitEvent.FAILED): CircuitState.OPEN,
    (CircuitState.TRIAL, CircuitEvent.ABANDONED): CircuitState.HALF_OPEN,
}
"""Every transition there is. Any other event changes nothing: a failure of a request that was sent before the circuit
opened, for example."""

PAUSE_SECONDS = 0.25
PAUSE_SECONDS_MAX = 5.0
"""The pause between two probes doubles from the first up to the second."""

CALM_SECONDS = 10.0
"""A circuit that was closed for longer begins with the shortest pause again."""


def probe_pause(failures: int) -> float:
    """Return the seconds before the next probe.

    Args:
        failures: Probes and trials that failed one after the other.
    """
    return float(min(PAUSE_SECONDS * 2 ** min(failures, 10), PAUSE_SECONDS_MAX))
