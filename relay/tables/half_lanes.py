"""The lanes of halves that are not settled, read from the half topic: a checkpoint has only their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any

from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.record_headers import headers_of
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import parse_half
from outbox.protocol.partitioner import lane_number
from relay.kafka.offset_reader import OffsetReader

MOST = 1_000
"""Halves of one half partition whose lanes are read; those behind them may be of any lane."""

NO_LANE = -1
"""For a half of a transaction without an ordering key."""


class HalfLanes:
    """The lanes of unsettled halves. Each half is read once.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel.
    """

    def __init__(self, kafka: Mapping[str, Any], channel: ChannelDescription) -> None:
        self._kafka = kafka
        self._topic, self._group = channel.channel.half_topic, channel.channel.relay_group
        self._known: dict[tuple[str, int], dict[int, int | None]] = {}

    def first_offsets(self, topic_id: str, partition: int, unsettled: Sequence[range]) -> dict[int | None, int]:
        """Return the lowest offset of each lane, and under None that of halves whose lane is not known.

        Args:
            topic_id: Id of the half topic now.
            partition: Half partition.
            unsettled: The offsets of its halves that are not settled, as ascending runs.

        Raises:
            KafkaUnreachable: Kafka does not answer.
            ConfigurationError: The right to read the half topic is missing.
        """
        offsets = list(islice(chain.from_iterable(unsettled), MOST + 1))
        before = self._known.get((topic_id, partition), {})
        read = self._read(partition, [offset for offset in offsets[:MOST] if offset not in before])
        lanes = {offset: before[offset] if offset in before else read.get(offset) for offset in offsets[:MOST]}
        self._known[topic_id, partition] = lanes
        return first_offsets({offset: lanes.get(offset) for offset in offsets})

    def _read(self, partition: int, offsets: Sequence[int]) -> dict[int, int | None]:
        if not offsets:
            return {}
        with closing(OffsetReader(self._kafka, self._topic, partition, self._group)) as reader:
            return {message.offset() or 0: _lane(message) for message in reader.read_at(offsets)}


def first_offsets(lanes: Mapping[int, int | None]) -> dict[int | None, int]:
    """Return the lowest offset of each lane.

    Args:
        lanes: Lanes by ascending offset.
    """
    found: dict[int | None, int] = {}
    for offset, lane in lanes.items():
        found.setdefault(lane, offset)
    return found


def _lane(message: Message) -> int | None:
    """Return the number of a half's lane; None if its control headers cannot be read."""
    try:
        control = parse_half(headers_of(message))
    except ProtocolError:
        return None
    key = control.ordering_key(message.key())
    return NO_LANE if key is None else lane_number(control.group, key)
