"""Reads the discard partition of one owner: its manifests at take-over, and single records when they are delivered.

Only the owner of a half partition writes to its discard partition, so what is read after the take-over is its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox.cluster import checked_properties
from outbox.errors import KafkaUnreachable
from outbox.protocol.discard import Manifest, parse_manifest
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.names import Channel
from relay.decode import decode_envelope
from relay.half import Half

TIMEOUT_SECONDS = 10.0
"""So long one answer of Kafka may take, and a committed record until it can be read."""

POLL_SECONDS = 0.2
READ_AT_ONCE = 1_000
NEAR = 1_000
"""Records that are rather read through than skipped."""

_MANIFEST = b"/manifest"

log = structlog.get_logger()


class DiscardReader:
    """The records of one discard partition.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel.
        partition: Its number.
    """

    def __init__(self, kafka: Mapping[str, str], channel: Channel, partition: int) -> None:
        self.newest_append = 0
        self._topic = channel.discard_topic
        self._partition = partition
        self._next = 0
        self._stopped = False
        self._places: dict[bytes, int] = {}
        self._manifests: dict[bytes, Manifest] = {}
        with checked_properties():
            self._consumer = Consumer(
                {
                    "auto.offset.reset": "earliest",  # compaction may have removed the first records
                    "fetch.queue.backoff.ms": 5,
                    "fetch.wait.max.ms": 100,
                    **kafka,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "group.id": channel.relay_group,  # never joined: partitions are assigned by hand
                    "isolation.level": "read_committed",
                }
            )

    def read_manifests(self) -> list[Manifest]:
        """Read the partition to its end: the manifests of all that lies there.

        Raises:
            NewerFormatError: There is one of a newer format.
            KafkaUnreachable: Kafka does not answer.
        """
        for message in self._read_on():
            self._note(message)
            self._note_manifest(message)
        found = list(self._manifests.values())
        self._manifests.clear()
        return found

    def fetch(self, wanted: Mapping[bytes, int]) -> dict[int, Half]:
        """Halves that lie there.

        Args:
            wanted: Keys of their records, and their half offsets: an earlier record of a key is of another half.

        Returns:
            The halves, by half offset.

        Raises:
            KafkaUnreachable: Kafka does not answer.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        found: dict[int, Half] = {}
        while missing := {key: offset for key, offset in wanted.items() if offset not in found}:
            if time.monotonic() > deadline:
                raise KafkaUnreachable(f"{len(missing)} records of {self._topic}/{self._partition} cannot be read")
            places = sorted(self._places[key] for key in missing if key in self._places)
            for message in self._read_at(places):
                half = decode_envelope(message.value())
                if missing.get(message.key() or b"") == half.offset:
                    found[half.offset] = half
            if len(found) < len(wanted):
                self._catch_up()
        return found

    def stop(self) -> None:
        """Let whoever reads here, or begins to, fail at once."""
        self._stopped = True

    def close(self) -> None:
        """Let the connection go."""
        self._consumer.close()

    def _catch_up(self) -> None:
        """Learn where own records lie that were written since; a commit is acknowledged before it can be read."""
        for message in self._read_on():
            self._note(message)

    def _note(self, message: Message) -> None:
        key = message.key() or b""
        self._next = (message.offset() or 0) + 1
        self.newest_append = max(self.newest_append, message.timestamp()[1])
        if message.value() is None:
            self._places.pop(key, None)
        elif not key.endswith(_MANIFEST):
            self._places[key] = message.offset() or 0

    def _note_manifest(self, message: Message) -> None:
        key = message.key() or b""
        if not key.endswith(_MANIFEST):
            return
        self._manifests.pop(key, None)
        if message.value() is None:
            return
        try:
            self._manifests[key] = parse_manifest(message.value())
        except NewerFormatError:
            raise
        except ProtocolError as error:
            log.warning("a manifest cannot be read and is left alone", partition=self._partition, reason=str(error))

    # --- Kafka ----------------------------------------------------------------------------------------------------

    def _read_on(self) -> Iterator[Message]:
        """The records from where reading ended up to the end of the partition."""
        return self._read(self._next)

    def _read_at(self, offsets: list[int]) -> Iterator[Message]:
        """The records at ascending offsets."""
        left = set(offsets)
        for index, offset in enumerate(offsets):
            if offset not in left:
                continue
            near = {other for other in offsets[index : index + NEAR] if other < offset + NEAR}
            for message in self._read(offset):
                if message.offset() in near:
                    near.discard(message.offset() or 0)
                    left.discard(message.offset() or 0)
                    yield message
                if not near or (message.offset() or 0) > max(near):
                    break

    def _read(self, offset: int) -> Iterator[Message]:
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])
        heard = time.monotonic()
        try:
            while time.monotonic() < heard + TIMEOUT_SECONDS and not self._stopped:
                first = self._consumer.poll(POLL_SECONDS)
                for message in [first, *self._consumer.consume(READ_AT_ONCE, 0)] if first is not None else []:
                    if _is_end(message):
                        return
                    if message.error() is None:
                        heard = time.monotonic()
                        yield message
        finally:
            self._consumer.unassign()
        raise KafkaUnreachable(f"the end of {self._topic}/{self._partition} was not seen")


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is None or not (error.fatal() or error.code() == KafkaError._PARTITION_EOF):  # noqa: SLF001 - librdkafka's own codes carry an underscore
        return False
    if error.fatal():
        raise KafkaException(error)
    return True
