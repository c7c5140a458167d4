"""The progress of half partitions in Kafka: their ends, and what the relay has settled of them."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client, checked_properties, end_offsets_of, topic_id
from outbox._kafka.channel import ChannelDescription
from outbox.errors import ConfigurationError
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint
from outbox.protocol.errors import ProtocolError
from relay.tables.half_lanes import HalfLanes
from relay.tables.half_order import HalfProgress

TIMEOUT_SECONDS = 2.0
"""For each request: a half partition without a leader delays other rows of the source by no more."""

PAUSE_SECONDS = 5.0
"""Pause after a request without an answer. Transactions of auto mode wait meanwhile."""

log = structlog.get_logger()


class HalfProgressReader:
    """Reads the progress of half partitions. It connects at the first read: most sources have no rows of auto mode.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel.
    """

    def __init__(self, kafka: Mapping[str, Any], channel: ChannelDescription) -> None:
        self._kafka = kafka
        self._topic = channel.channel.half_topic
        self._group = channel.channel.relay_group
        self._lanes = HalfLanes(kafka, channel)
        self._not_before = -math.inf
        self._consumer: Consumer | None = None

    @cached_property
    def _admin(self) -> AdminClient:
        return admin_client(self._kafka)

    def _connected(self) -> Consumer:
        """Return a consumer that never joins the group.

        It reads uncommitted: an offset that was committed once is enough, because a checkpoint never goes back.
        """
        if self._consumer is None:
            properties = {"enable.auto.commit": False, "group.id": self._group, "isolation.level": "read_uncommitted"}
            with checked_properties():
                self._consumer = Consumer({**self._kafka, **properties})
        return self._consumer

    def read(self, partitions: Collection[int]) -> Mapping[int, HalfProgress]:
        """Return the progress of half partitions; those that do not answer are missing.

        The topic's id is read first: a half of a transaction that is visible already is then in the topic of that id,
        or in one that is gone.
        """
        found: dict[int, HalfProgress] = {}
        if time.monotonic() < self._not_before:
            return found
        try:
            found.update(self._read(sorted(partitions)))
        except (KafkaException, ConfigurationError) as error:
            log.warning("Progress of half partitions not read", topic=self._topic, error=str(error))
            self._not_before = time.monotonic() + PAUSE_SECONDS
        return found

    def _read(self, partitions: Sequence[int]) -> Iterator[tuple[int, HalfProgress]]:
        places = [(self._topic, number) for number in partitions]
        id_ = topic_id(self._admin, self._topic, TIMEOUT_SECONDS)
        ends = end_offsets_of(self._admin, places, TIMEOUT_SECONDS)
        if len(ends) < len(places):
            self._not_before = time.monotonic() + PAUSE_SECONDS
        committed = self._connected().committed([TopicPartition(*place) for place in ends], TIMEOUT_SECONDS)
        for place in committed if id_ is not None else ():
            end, checkpoint = ends[place.topic, place.partition], _checkpoint(place, id_ or "")
            if checkpoint is None:
                yield place.partition, HalfProgress(id_ or "", end, None)
            else:
                unsettled = self._lanes.first_offsets(id_ or "", place.partition, checkpoint.unsettled)
                yield place.partition, HalfProgress(id_ or "", end, checkpoint.head, unsettled)

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close()


def _checkpoint(committed: TopicPartition, topic_id: str) -> HalfCheckpoint | None:
    """Return the relay's checkpoint of a half partition; None if no checkpoint of this topic can be read."""
    if committed.error is not None or committed.offset < 0:
        return None
    with suppress(ProtocolError):
        return parse_half_checkpoint(committed.metadata or "", committed.offset, topic_id, committed.partition)
    return None
