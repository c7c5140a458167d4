"""R15: in a Kafka transaction of the relay the offsets come last, after all messages.

A late EndTxn of the old protocol (KAFKA-17754) ends the next transaction in its midst. With the offsets first it
commits them with a part of the messages, the rest is refused, and the relay goes on behind them: lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import TopicPartition

from outbox.protocol.record import Record
from relay.kafka.transactional_delivery import OFFSETS_SECONDS, TransactionalDelivery
from tests.mutants.runner.mutant import Harm, Mutant


def _fill(
    self: TransactionalDelivery, records: Iterable[Record], offsets: Sequence[TopicPartition], group_metadata: bytes
) -> None:
    """Offsets, messages, flush."""
    self._producer.client.send_offsets_to_transaction(list(offsets), group_metadata, OFFSETS_SECONDS)
    self._producer.produce(records)
    self._producer.flush()


MUTANT = Mutant(
    "R15",
    Harm.LOST,
    TransactionalDelivery._fill,
    _fill,
    ("tests/unit/relay/test_delivery.py::test_a_late_end_of_a_transaction_never_costs_a_message",),
)
