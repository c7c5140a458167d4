"""Reads what becomes visible on topics, while attacks go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException

from outbox._kafka.consumed_records import headers_of
from outbox.protocol.discard import Manifest, is_manifest_key, parse_manifest
from outbox.testing import VisibleRecord


class Observer:
    def __init__(self, kafka: Mapping[str, str], topics: Sequence[str]) -> None:
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": "observer",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
            }
        )
        self._consumer.subscribe(list(topics))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.records: list[tuple[float, VisibleRecord]] = []
        """Records with the time of their arrival, monotonic seconds."""
        self.failure: BaseException | None = None

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            if error := message.error():
                self.failure = KafkaException(error)
                return
            place = (message.topic() or "", message.partition() or 0, message.offset() or 0)
            record = VisibleRecord(*place, message.key(), message.value(), headers_of(message), message.timestamp()[1])
            self.records.append((time.monotonic(), record))

    @contextmanager
    def running(self) -> Iterator[Observer]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()
            self._consumer.close()

    def on(self, *topics: str) -> list[VisibleRecord]:
        return [record for _, record in list(self.records) if record.topic in topics]

    def reason(self, channel: str, transaction_id: str) -> str | None:
        return next((str(one.reason) for one in self._manifests(channel) if one.transaction_id == transaction_id), None)

    def reason_at(self, channel: str, offset: int) -> str | None:
        """Return why the half at an offset is in the discard topic of a channel; None: it is not."""
        return next((str(one.reason) for one in self._manifests(channel) if (0, offset) in one.offsets), None)

    def _manifests(self, channel: str) -> Iterator[Manifest]:
        """Yield the manifests of a channel with one half partition, the newest first."""
        for record in reversed(self.on(f"{channel}.discard")):
            if record.key is not None and record.value is not None and is_manifest_key(record.key):
                yield parse_manifest(record.value)
