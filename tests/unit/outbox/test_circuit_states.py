"""The circuit of an outbox as a table of states, and the pauses between its probes."""

from __future__ import annotations

import itertools
import time

import pytest

from outbox._publish.circuit import Circuit
from outbox._rules.circuit_states import (
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    TRANSITIONS,
    CircuitEvent,
    CircuitState,
    probe_pause,
)
from outbox.errors import PublishFailed


def test_every_state_is_reached_and_leads_back_to_closed() -> None:
    assert {state for state, _ in TRANSITIONS} == {*TRANSITIONS.values()} == {*CircuitState}
    for state in CircuitState:
        reached = {state}
        for _ in CircuitState:
            reached |= {to for (start, _), to in TRANSITIONS.items() if start in reached}
        assert CircuitState.CLOSED in reached


def test_nothing_but_a_probe_and_a_trial_closes_an_open_circuit() -> None:
    ways = {state: {event for (start, event) in TRANSITIONS if start is state} for state in CircuitState}
    assert ways[CircuitState.OPEN] == {CircuitEvent.ANSWERED, CircuitEvent.PROBED}
    assert ways[CircuitState.HALF_OPEN] == {CircuitEvent.TRIED}


def test_one_transaction_tries_at_a_time() -> None:
    circuit = Circuit(opens_always=True)
    assert not circuit.try_now(), "it is closed"
    circuit.failed(0.0, "no ack")
    assert not circuit.try_now(), "no probe has succeeded"
    assert circuit.half_open()
    assert not circuit.half_open()
    with pytest.raises(PublishFailed, match="circuit is open"):
        circuit.require_closed()
    assert (circuit.try_now(), circuit.try_now()) == (True, False)
    circuit.require_closed()
    circuit.abandon()
    assert circuit.try_now()
    assert circuit.close() is not None
    assert (circuit.state, circuit.close(), circuit.half_open()) == (CircuitState.CLOSED, None, False)


def test_trial_that_fails_opens_the_circuit_again() -> None:
    circuit = Circuit(opens_always=True)
    circuit.failed(0.0, "first")
    circuit.half_open()
    circuit.try_now()
    assert circuit.failed(0.0, "second")
    assert circuit.state is CircuitState.OPEN
    with pytest.raises(PublishFailed, match="First failure: first"):
        circuit.require_closed()
    circuit.abandon()
    assert circuit.state is CircuitState.OPEN, "the trial has had its result"


def test_slow_kafka_opens_a_circuit_that_opens_always() -> None:
    """In auto mode nothing is lost by it: messages become rows."""
    circuit = Circuit(opens_always=True)
    circuit.answered()
    assert circuit.failed(0.0, "late")


def test_pauses_grow_until_the_circuit_was_closed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(100.0, 0.001)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    circuit = Circuit(opens_always=True)
    pauses = []
    for _ in range(4):
        circuit.failed(0.0, "no ack")
        pauses.append(circuit.pause)
        circuit.half_open()
        circuit.try_now()
        circuit.close()
    assert pauses == [PAUSE_SECONDS * 2**failures for failures in range(4)]
    now = itertools.count(200.0)
    circuit.failed(0.0, "no ack")
    assert circuit.pause == PAUSE_SECONDS
    circuit.probe_failed()
    assert circuit.pause == 2 * PAUSE_SECONDS
    monkeypatch.undo()
    assert probe_pause(10_000) == PAUSE_SECONDS_MAX
