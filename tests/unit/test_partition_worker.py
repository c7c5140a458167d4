"""The worker of a partition reads ops and halves in turns, and never waits for both at once."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from confluent_kafka import Message

import relay.ledger
from outbox.channel import ChannelDescription
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.topics import TopicCache
from relay.delivery import Delivery
from relay.discard_reader import DiscardReader
from relay.ledger import Ledger
from relay.partition import PartitionWorker
from relay.transaction import Transaction
from tests.unit.ledger_model import PARTITION, entry, half, new_ledger

WINDOW = 4
EARLY = 2


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger with little room."""
    monkeypatch.setattr(relay.ledger, "WINDOW", WINDOW)
    monkeypatch.setattr(relay.ledger, "FAR", WINDOW)
    monkeypatch.setattr(relay.ledger, "EARLY_OPS", EARLY)
    return new_ledger()


@pytest.fixture
def worker(ledger: Ledger) -> PartitionWorker:
    """A worker whose thread does not run: a test calls what it would."""
    return PartitionWorker(
        PARTITION,
        Mock(spec=ChannelDescription),
        ledger,
        Mock(spec=Delivery),
        Mock(spec=DiscardReader),
        Mock(spec=TopicCache),
        group_metadata=Mock(),
        ask=Mock(),
        batch_messages=100,
    )


def halves(*numbers: int) -> list[Message]:
    """Half messages of one transaction each, whose number is the offset."""
    return [
        Message("outbox.half", PARTITION, found.offset, found.key, found.value, list(found.headers), None, (2, 1_000))
        for found in (half(number, number) for number in numbers)
    ]


def commits(first_offset: int, *numbers: int) -> list[Message]:
    """Op records of one COMMIT each."""
    return [
        _op(offset, entry(OpKind.COMMIT, number, "0", number, number))
        for offset, number in enumerate(numbers, first_offset)
    ]


def _op(offset: int, decision: OpEntry) -> Message:
    value, headers = encode_op([decision], OpSource.PRODUCER)
    return Message("outbox.op", PARTITION, offset, None, value, list(headers), None, (2, 1_000))


def taken(ledger: Ledger) -> list[int]:
    return [_number(transaction) for transaction in ledger.take_ready(100)]


def _number(transaction: Transaction) -> int:
    return int(transaction.id[-12:], 16)


def test_ops_are_read_on_while_the_half_partition_stands_still(worker: PartitionWorker, ledger: Ledger) -> None:
    """It stands at its window; the ops that free it lie behind more early ops than there is room for."""
    worker.feed(halves(0, 1, 2, 3, 4, 5, 6), commits(0, 5, 6))
    worker._read()
    assert ledger.half_checkpoint().head == WINDOW
    assert ledger.early_ops_full()
    worker.feed([], commits(2, 4, 0, 1, 2, 3))
    worker._read()
    assert taken(ledger) == [0, 1, 2, 3]
    worker._read()
    assert taken(ledger) == [5, 6]
    assert ledger.pending() == 1, "its op was passed, the checker will say it"


def test_ops_for_halves_ahead_wait_while_halves_can_be_read(worker: PartitionWorker, ledger: Ledger) -> None:
    worker.feed([], commits(0, 1, 2))
    worker._read()
    assert ledger.early_ops_full()
    worker.feed(halves(0), commits(2, 3, 0))
    worker._read()
    assert taken(ledger) == []
    assert ledger.counts["op_passed"] == 0
    worker.feed(halves(1, 2, 3), [])
    worker._read()
    worker._read()
    assert taken(ledger) == [1, 2, 3, 0]
