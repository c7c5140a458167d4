"""Flush before offsets: librdkafka does not flush by itself before it sends offsets.

Unflushed messages leave after the offsets, which is what R15 forbids: a late EndTxn of the old protocol commits the
offsets, the messages are refused, and the relay goes on behind them: lost.
"""

from __future__ import annotations

from relay.kafka.producer import BatchProducer
from tests.mutants.runner.mutant import Harm, Mutant


def flush(self: BatchProducer) -> None:
    """The commit flushes anyway."""
    del self


MUTANT = Mutant(
    "flush before offsets",
    Harm.LOST,
    BatchProducer.flush,
    flush,
    ("tests/unit/relay/test_delivery.py::test_a_late_end_of_a_transaction_never_costs_a_message",),
)
