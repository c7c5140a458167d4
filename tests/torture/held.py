"""Owners that wait until Kafka has ended a Kafka transaction of theirs, which wrote to the short topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.spans import Span
from tests.torture.log import seen

_READ_SECONDS = 2.0


class HeldOwners:
    """When the first record of an owner that readers do not see yet, in the short topic, stayed where it was.

    Kafka begins no other transaction of that owner meanwhile, for whatever topic (docs/operations/recovery.md).
    """

    def __init__(self, kafka: Mapping[str, str | int | float | bool], topic: str) -> None:
        self._topic = topic
        self._config = {**kafka, "group.id": "torture-held", "isolation.level": "read_uncommitted"}
        self._held: dict[int, tuple[int, str, float]] = {}  # by partition: offset, owner, since when
        self._spans: defaultdict[str, list[Span]] = defaultdict(list)

    def saw(self, ends: Mapping[tuple[str, int], int], stable: Mapping[tuple[str, int], int], now: float) -> None:
        """Take the ends of partitions, and up to where readers see them; those that did not answer are missing."""
        for topic, number in ends.keys() & stable.keys():
            offset = stable[topic, number]
            if topic != self._topic:
                continue
            held = self._held.get(number)
            if held is not None and (held[0] != offset or offset == ends[topic, number]):
                self._spans[held[1]].append((held[2], now))
                del self._held[number]
            if offset < ends[topic, number] and number not in self._held:
                self._held[number] = offset, self._owner(number, offset), now

    def _owner(self, number: int, offset: int) -> str:
        """Return the half partition or table source that wrote a record; empty if it cannot be read."""
        with closing(Consumer(self._config)) as consumer:
            consumer.assign([TopicPartition(self._topic, number, offset)])
            try:
                message = consumer.poll(_READ_SECONDS)
            except KafkaException:
                return ""
        return "" if message is None or message.error() is not None else seen(message).origin[0]

    def spans(self, owner: str, now: float) -> Sequence[Span]:
        """Return when an owner was held."""
        return [*self._spans[owner], *((since, now) for _, held, since in self._held.values() if held == owner)]
