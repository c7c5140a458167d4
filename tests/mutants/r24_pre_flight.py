"""R24: whole transactions pass pre-flight before they enter a batch.

One message to a topic that was deleted, or that is too large for it, fails its Kafka transaction, again and again: the
half partition is stuck, and with it everybody who publishes there.
"""

from __future__ import annotations

from collections.abc import Mapping

from outbox.protocol.names import Channel
from relay.batching.allow_list import EVERYTHING, AllowList
from relay.batching.preflight import RealTopic, inspect
from relay.state.message_transaction import Finding, Transaction
from tests.mutants.runner.mutant import Harm, Mutant


def _wave_through(
    transaction: Transaction,
    topics: Mapping[str, RealTopic | None],
    channel: Channel,
    now: int | None = None,
    allowed: AllowList = EVERYTHING,
    more: int = 0,
) -> Finding | None:
    """Kafka will tell."""
    del transaction, topics, channel, now, allowed, more
    return None


MUTANT = Mutant(
    "R24",
    Harm.STUCK,
    inspect,
    _wave_through,
    (
        "tests/unit/relay/test_preflight.py::test_one_bad_message_stops_its_whole_transaction",
        "tests/unit/relay/test_preflight.py::test_a_transaction_that_lacks_a_listed_position_is_incomplete",
    ),
)
