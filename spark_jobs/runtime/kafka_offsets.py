"""Offsets of topics and of the relay, asked with the Java client and the properties of Spark's own source."""

import base64
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outbox.protocol.names import Place
from spark_jobs.runtime.java_admin import JavaAdmin
from spark_jobs.runtime.spans import Checkpoint

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now, and how long Kafka keeps its records.

    Args:
        compacted: Whether Kafka may remove a record because a later one has its key.
        retention: ms after which it removes records by age; None: never.
        by_size: Whether it removes records because they are many.
    """

    name: str
    id: str
    partitions: int
    compacted: bool
    retention: int | None
    by_size: bool

    def places(self) -> list[Place]:
        return [(self.name, number) for number in range(self.partitions)]


class KafkaOffsets(JavaAdmin):
    """What the audit asks of topics and of the relay's group."""

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return those of the topics that exist."""
        found = self._described(names)
        with self._told():
            return {name: self._topic(name, one) for name, one in found.items()}

    def _topic(self, name: str, found: Any) -> Topic:
        kind = self._kafka.common.config.ConfigResource.Type.TOPIC
        resource = self._kafka.common.config.ConfigResource(kind, name)
        needed = f"DESCRIBE_CONFIGS on topic {name}"
        config = self._awaited(self._admin.describeConfigs([resource]).all(), needed)[resource]
        compacted = "compact" in config.get("cleanup.policy").value()
        deletes = "delete" in config.get("cleanup.policy").value()
        age, size = (int(config.get(name).value()) for name in ("retention.ms", "retention.bytes"))
        retention = age if deletes and age >= 0 else None
        id_ = topic_uuid(str(found.topicId().toString()))
        return Topic(name, id_, len(found.partitions()), compacted, retention, deletes and size >= 0)

    def since(self, places: Iterable[Place], time_ms: int) -> dict[Place, int]:
        """Return the first offsets whose record has this time (ms since 1970) or a later one; its absence is -1."""
        return self._listed(places, self._kafka.clients.admin.OffsetSpec.forTimestamp(max(time_ms, 0)))

    def committed_ends(self, places: Iterable[Place], patience_ms: int) -> tuple[dict[Place, int], set[Place]]:
        """Return the ends as they are now, once no Kafka transaction is open below them.

        Returns:
            The ends, and the partitions where a transaction stayed open; their ends are where it began.
        """
        ends, deadline = self.ends(places), time.monotonic() + patience_ms / 1000
        while True:
            stable = self.ends(ends, committed=True)
            open_ = {place for place, end in ends.items() if stable[place] < end}
            if not open_ or time.monotonic() > deadline:
                return {place: min(end, stable[place]) for place, end in ends.items()}, open_
            time.sleep(LOOK_SECONDS)

    def checkpoints(self, group: str, topic: Topic) -> dict[int, Checkpoint]:
        """Return what a group has committed of a topic's partitions, offsets with metadata."""
        with self._told():
            offsets = self._admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()
            found = self._awaited(offsets, f"DESCRIBE on group {group}")
            committed = {}
            for place in topic.places():
                one = found.get(self._place(place))
                if one is not None:
                    committed[place[1]] = Checkpoint(int(one.offset()), str(one.metadata()))
            return committed


def source_properties(options: Mapping[str, str], spans: Mapping[str, Mapping[int, tuple[int, int]]]) -> dict[str, str]:
    """Options of Spark's Kafka source for a batch that reads spans of offsets and nothing else.

    Args:
        spans: First offset and first offset behind, by topic and partition.
    """
    starts = {topic: {str(key): start for key, (start, _) in parts.items()} for topic, parts in spans.items()}
    ends = {topic: {str(key): end for key, (_, end) in parts.items()} for topic, parts in spans.items()}
    kept = {name: value for name, value in options.items() if name != "subscribe"}
    assigned = {topic: sorted(parts) for topic, parts in spans.items()}
    return {
        **kept,
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def topic_uuid(text: str) -> str:
    """Return a topic's id as the protocol writes it; Kafka's Java client writes base64."""
    return str(uuid.UUID(bytes=base64.urlsafe_b64decode(f"{text}==")))
