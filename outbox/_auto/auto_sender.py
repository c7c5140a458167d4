"""The sender of an outbox in auto mode: no transaction waits for Kafka while the circuit is open."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from outbox._publish.sender import Sender
from outbox._rules.circuit_states import CircuitState
from outbox.errors import OutboxError

log = logging.getLogger("outbox")


class Attempt:
    """Whether one transaction may send its halves.

    Args:
        sender: The sender.
        is_trial: Whether the circuit is half-open, and this transaction tries whether Kafka acknowledges halves.
        is_allowed: Whether it may.
    """

    def __init__(self, sender: AutoSender, *, is_trial: bool, is_allowed: bool) -> None:
        self._sender = sender
        self.is_trial = is_trial
        self.is_allowed = is_allowed

    def succeeded(self) -> None:
        """Record that Kafka acknowledged the halves in time."""
        if self.is_trial:
            self._sender.close_circuit()


class AutoSender(Sender):
    """A sender whose open circuit refuses halves, but no publications."""

    _while_open = "messages go to the message table"

    @property
    def answers(self) -> bool:
        """Whether the circuit is closed."""
        return self._circuit.state is CircuitState.CLOSED

    def require_accepting(self) -> None:
        """Refuse a publication after `close()`; while Kafka does not answer, messages become rows.

        Raises:
            UsageError: The outbox is closed.
        """
        self.require_open()

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Yield whether a transaction may send its halves; a trial without a result is left to another transaction."""
        is_trial = self._circuit.try_now()
        try:
            yield Attempt(self, is_trial=is_trial, is_allowed=is_trial or self.answers)
        finally:
            if is_trial:
                self._circuit.abandon()

    def close_circuit(self) -> None:
        """Close the circuit: Kafka acknowledged the halves of the trial."""
        self._close_circuit()

    def _probe(self) -> None:
        """Probe the cluster with growing pauses until it accepts halves again; then let one transaction try."""
        while not self._enquiries.closed(self._circuit.pause):
            if self._takes_halves() and self._is_connected():
                self._half_open()
                return
            self._circuit.probe_failed()

    def _is_connected(self) -> bool:
        """Connect, so that the transaction that tries does not wait for it."""
        try:
            self._start()
        except OutboxError as error:
            log.warning("Connection to Kafka failed after a probe had succeeded: %s", error)
            return False
        return True

    def _half_open(self) -> None:
        if self._circuit.half_open():
            log.warning("Circuit half-open, the next transaction tries Kafka")
            self.recorder.circuit_half_opened(self._settings.group)
