"""Transactions as an application writes them that is not held back: what the library would refuse arrives, too."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import Producer

from outbox.protocol.half import ANY_PARTITION, NO_OPTIONS, HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from tests.support.harness import Site

OPS_AT_ONCE = 500


@dataclass(frozen=True)
class RawMessage:
    """A message of a raw transaction; without a key it goes anywhere, and is `unreadable` if its headers are broken."""

    topic: str
    key: bytes | None = b"k"
    value: bytes = b"v"
    partition: int = ANY_PARTITION
    options: HalfOptions = NO_OPTIONS
    headers: tuple[tuple[str, bytes], ...] = ()
    unreadable: bool = False


class RawLog:
    """The only writer of half partition 0 of a site."""

    def __init__(self, site: Site, topic_id: str) -> None:
        self._channel = site.channel
        self._topic_id = topic_id
        self._producer = Producer({**site.kafka(), "enable.idempotence": True, "linger.ms": 5})
        self._next = 0
        self._entries: list[OpEntry] = []

    def commit(self, *messages: RawMessage, service: str = "orders", listed: int | None = None) -> str:
        """Write the halves of a transaction whose commit lists so many, and return its id; `flush` commits it."""
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        first = self._next
        for position, message in enumerate(messages):
            control = HalfControl(message.topic, message.partition, id_, position, service, Truth.ROW, message.options)
            headers = [] if message.unreadable else control.encode()
            self._producer.produce(
                self._channel.half_topic, message.value, message.key, 0, headers=[*headers, *message.headers]
            )
            self._producer.poll(0)
        self._next += len(messages)
        positions = Positions.first(len(messages) if listed is None else listed)
        self._entries.append(OpEntry(OpKind.COMMIT, id_, self._topic_id, 0, positions, first, self._next - 1))
        return id_

    def flush(self) -> None:
        assert self._producer.flush(30) == 0
        for entries in _cut(self._entries):
            value, headers = encode_op(entries, OpSource.PRODUCER)
            self._producer.produce(self._channel.op_topic, value, None, 0, headers=headers)
        assert self._producer.flush(30) == 0
        self._entries = []


def _cut(entries: Sequence[OpEntry]) -> Iterable[Sequence[OpEntry]]:
    return (entries[start : start + OPS_AT_ONCE] for start in range(0, len(entries), OPS_AT_ONCE))
