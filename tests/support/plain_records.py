"""When Kafka itself took no records: a plain producer waited for an acknowledgement."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from confluent_kafka import KafkaError, Producer

from tests.support.harness import Site
from tests.support.spans import Span, merged

TOPIC = "plain"

PLAIN_SECONDS = 1.0
"""A plain record that waits longer for its acknowledgement shows that Kafka itself takes none."""

_EACH_SECONDS = 0.1
_END_SECONDS = 60.0
_ANSWER_SECONDS = 5.0


class PlainRecords:
    """Writes records to each partition of a topic while the block lasts: how long these wait, Kafka itself needs."""

    def __init__(self, site: Site, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin, self._topic, self._clock = site.admin, site.topic(TOPIC), clock
        self._producer = Producer({**site.kafka(), "log_level": 0})
        self._waits: list[Span] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def spans(self) -> Sequence[Span]:
        """Return the times of the clock in which a record waited for more than a second, merged."""
        return merged(tuple(self._waits))

    def _write(self) -> None:
        partitions = self._admin.list_topics(self._topic, _ANSWER_SECONDS).topics[self._topic].partitions
        while not self._end.wait(_EACH_SECONDS):
            for number in partitions:
                self._producer.produce(self._topic, b"", partition=number, on_delivery=self._acknowledged())
            self._producer.poll(0)
        self._producer.flush(_END_SECONDS)

    def _acknowledged(self) -> Callable[[KafkaError | None, object], None]:
        began = self._clock()

        def take(_error: KafkaError | None, _message: object) -> None:
            ended = self._clock()
            if ended - began > PLAIN_SECONDS:
                self._waits.append((began, ended))

        return take

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
