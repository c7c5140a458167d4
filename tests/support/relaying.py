"""Kafka transactions on real topics as the relay writes them, without a relay."""

import os
from collections.abc import Sequence
from itertools import count
from random import Random

from confluent_kafka import Producer

from outbox.protocol.half import HalfControl, Truth, real_headers
from outbox.protocol.identifiers import make_transaction_id
from tests.support.harness import Site


class RelayedTopics:
    """Real topics, one transactional producer, which fences those of its `number`, and `keys` (0: each its own)."""

    def __init__(self, site: Site, topics: Sequence[str], number: int = 0, seed: int = 0, keys: int = 0) -> None:
        self._topics = topics
        self._chance = Random(seed)
        self._keys = keys
        self._offsets = count()
        self._producer = Producer(
            {
                **site.kafka(),
                "transactional.id": f"{site.name}-relay-{number}",
                "retry.backoff.ms": 5,
                "topic.metadata.refresh.interval.ms": 500,  # partitions that are added get records soon
            }
        )
        self._producer.init_transactions()

    def write(self, rows: int, *, commit: bool = True) -> None:
        self.begin(rows)
        self.end(commit=commit)

    def begin(self, rows: int) -> None:
        """Write records in a transaction that stays open; a few keys and values are null."""
        transaction_id = make_transaction_id(1_800_000_000_000, os.urandom(10))
        self._producer.begin_transaction()
        for position in range(rows):
            control = HalfControl(self._chance.choice(self._topics), -1, transaction_id, position, "orders", Truth.ROW)
            key = None if position % 7 == 6 else self._chance.randrange(self._keys) if self._keys else os.urandom(4)
            self._producer.produce(
                control.topic,
                key=str(key) if isinstance(key, int) else key,
                partition=key % 3 if isinstance(key, int) else -1,
                value=None if position % 5 == 4 else os.urandom(20),
                headers=real_headers(control, [("trace", b"\xff")], 0, next(self._offsets)),
            )
        self._producer.flush()

    def end(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()
