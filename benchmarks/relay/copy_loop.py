"""The bare copy loop: what one Python process can move from half and op topics in transactions, and nothing else.

It joins by transaction id in one dict, produces, commits the consumer's positions with the transaction, and keeps no
promise: no order, no checkpoint for what pends, no pre-flight, no check-back. What a relay does beside it costs the
difference.

`python -m benchmarks.relay.copy_loop CHANNEL TARGET EACH` runs one until it is ended, on the servers that the
environment names (`OUTBOX_BOOTSTRAP_SERVERS`); every transaction has EACH messages.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Message, Producer

from outbox.protocol.names import TRANSACTION_HEADER, Channel

BATCH = 5_000
HEADERS = 4
_WAIT_SECONDS = 0.05


class CopyLoop:
    """One consumer and one transactional producer."""

    def __init__(self, bootstrap_servers: str, channel: Channel, target: str, each: int = 1) -> None:
        self._target = target
        self._each = each
        self._halves: dict[bytes, list[Message]] = defaultdict(list)
        self._early: set[bytes] = set()  # decided before their half was read
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": f"copy-{uuid.uuid4()}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 5,
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "range",
                "queued.min.messages": 1_000_000,
            }
        )
        self._consumer.subscribe([channel.half_topic, channel.op_topic])
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "linger.ms": 5,
                "retry.backoff.ms": 1,
                "transactional.id": f"copy-{uuid.uuid4()}",
            }
        )
        self._producer.init_transactions()

    def copy_batch(self) -> None:
        """Copy what is there, at most one batch, in one transaction."""
        decided = list(self._decided(self._consumer.consume(BATCH, _WAIT_SECONDS)))
        if not decided:
            return
        self._producer.begin_transaction()
        for half in decided:
            self._producer.produce(self._target, half.value(), half.key(), headers=_headers(half)[:HEADERS])
        self._producer.flush()
        positions = self._consumer.position(self._consumer.assignment())
        self._producer.send_offsets_to_transaction(
            [place for place in positions if place.offset >= 0], self._consumer.consumer_group_metadata()
        )
        self._producer.commit_transaction()

    def _decided(self, messages: Iterable[Message]) -> Iterable[Message]:
        for message in messages:
            if message.error():
                continue
            id_ = next((value for name, value in _headers(message) if name == TRANSACTION_HEADER), None)
            if isinstance(id_, bytes):
                self._halves[id_[2:38]].append(message)  # "1;", the id, "/", the position
            else:
                self._early.add((message.value() or b"").split(maxsplit=2)[1])
        for id_ in self._early & self._halves.keys():
            if len(self._halves[id_]) == self._each:
                self._early.discard(id_)
                yield from self._halves.pop(id_)


def _headers(message: Message) -> list[tuple[str, str | bytes | None]]:
    headers: Any = message.headers()
    return headers or []


def main() -> None:
    """Copy until the process is ended."""
    channel, target, each = sys.argv[1:]
    loop = CopyLoop(os.environ["OUTBOX_BOOTSTRAP_SERVERS"], Channel(channel), target, int(each))
    while True:
        loop.copy_batch()


if __name__ == "__main__":
    main()
