"""What `watch` asks Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_jobs.java_admin import Place
from spark_jobs.kafka_offsets import KafkaOffsets, Topic


class WatchedTopics(KafkaOffsets):
    """Ends of partitions, with and without what is in open Kafka transactions, and how far the relay is."""

    def stable(self, places: Iterable[Place]) -> dict[Place, int]:
        """Last stable offsets: where a read_committed reader ends."""
        return self._latest(places, committed=True)

    def relay_heads(self, group: str, half: Topic) -> dict[int, int]:
        """By half partition, the first offset that the relay has not read; absent if it has no checkpoint."""
        found = {}
        for number, checkpoint in self.checkpoints(group, half).items():
            parsed = checkpoint.parse(half.id)
            found[number] = checkpoint.offset if parsed is None else parsed.head
        return found


def places_of(topics: Mapping[str, Topic]) -> list[Place]:
    """The partitions of topics."""
    return [place for topic in topics.values() for place in topic.places()]
