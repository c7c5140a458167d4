"""Many transactions as they are when all is over: halves, op markers, records, rows, and the relay's checkpoint.

Made by the protocol's own encoders and written at once, because the jobs that read them are what is measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.half import HalfControl, HalfOptions, OutgoingHeaders, Truth, real_headers
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from tests.support.harness import Site

SERVICE = "orders"
AT_ONCE = 10_000
"""Transactions whose records are in memory together, and one Kafka transaction on the real topic."""

_KEYS = 10_000
_USER_HEADERS: list[tuple[str, bytes | None]] = [("type", b"changed")]
_SEND = {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000, "compression.type": "lz4"}


@dataclass(frozen=True, slots=True)
class Span:
    """What was written.

    Args:
        start: Append times of the halves lie from here, ms since 1970,
        end: to before here.
    """

    start: int
    end: int
    transactions: int

    @property
    def rows(self) -> int:
        """Records and callback rows together: half, op marker, record and row of each."""
        return self.records + self.transactions

    @property
    def records(self) -> int:
        """Half, op marker and record of each."""
        return 3 * self.transactions


def write_history(site: Site, channel: ChannelDescription, topic: str, transactions: int, body: bytes) -> Span:
    """Write committed transactions of one message each, all delivered and settled.

    Args:
        site: Kafka and Postgres; nothing was written to the channel before.
        topic: Full name of the real topic.
        transactions: How many, spread over all half partitions.
    """
    start = _now()
    writer = _Writer(site, channel, topic, body)
    each, more = divmod(transactions, channel.partitions)
    for partition in range(channel.partitions):
        writer.write(partition, each + (partition < more))
    with site.connect() as connection:
        connection.execute(f"ANALYZE {site.tables.transaction}".encode())
    return Span(start, _now() + 1, transactions)


class _Writer:
    def __init__(self, site: Site, channel: ChannelDescription, topic: str, body: bytes) -> None:
        self._site = site
        self._channel = channel
        self._topic = topic
        self._body = body
        self._plain = Producer({**site.kafka(), **_SEND, "enable.idempotence": True})
        self._real = Producer({**site.kafka(), **_SEND, "transactional.id": f"{site.name}-history"})
        self._real.init_transactions()
        with site.connect() as connection:
            self._options = HalfOptions(incarnation=CallbackTable(site.tables).incarnation(connection))

    def write(self, partition: int, transactions: int) -> None:
        """Write the transactions of one half partition, and the checkpoint behind them."""
        columns = "transaction_id, service, state, channel, half_topic_id, half_partition, first_offset, "
        columns += "last_offset, positions"
        copied = f"COPY {self._site.tables.transaction} ({columns}) FROM STDIN".encode()
        with self._site.connect() as connection, connection.cursor().copy(copied) as copy:
            for first in range(0, transactions, AT_ONCE):
                for row in self._write_some(partition, range(first, min(first + AT_ONCE, transactions))):
                    copy.write_row(row)
        self._commit(partition, transactions)

    def _write_some(self, partition: int, offsets: range) -> Iterator[tuple[str | int, ...]]:
        self._real.begin_transaction()
        for offset in offsets:
            id_ = make_transaction_id(_now(), os.urandom(10))
            control = HalfControl(self._topic, -1, id_, 0, SERVICE, Truth.ROW, self._options)
            key = b"key-%d" % (offset % _KEYS)
            half: OutgoingHeaders = [*control.encode(), *_USER_HEADERS]
            self._plain.produce(
                self._channel.half.name, self._body, key, partition=partition, headers=half, on_delivery=_check
            )
            entry = OpEntry(OpKind.COMMIT, id_, self._channel.half.id, partition, Positions.first(1), offset, offset)
            value, headers = encode_op([entry], OpSource.PRODUCER)
            self._plain.produce(self._channel.op.name, value, partition=partition, headers=headers, on_delivery=_check)
            real = real_headers(control, _USER_HEADERS, partition, offset)
            self._real.produce(self._topic, self._body, key, headers=real)
            yield id_, SERVICE, "C", self._site.name, self._channel.half.id, partition, offset, offset, "0"
        self._plain.flush()
        self._real.commit_transaction()

    def _commit(self, partition: int, offset: int) -> None:
        """Commit the relay's checkpoint: all is settled."""
        half = self._channel.half
        metadata = HalfCheckpoint(offset, offset).encode(half.id, partition)
        consumer = Consumer(
            {**self._site.kafka(), "group.id": self._channel.channel.relay_group, "enable.auto.commit": False}
        )
        try:
            place = TopicPartition(half.name, partition, offset, metadata)
            consumer.commit(offsets=[place], asynchronous=False)
        finally:
            consumer.close()


def _check(error: object, _message: object) -> None:
    if error is not None:
        raise RuntimeError(f"a record was not stored: {error}")


def _now() -> int:
    return time.time_ns() // 1_000_000
