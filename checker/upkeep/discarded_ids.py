"""Track which transactions are in the discard topic, by reading it incrementally.

A relay moves a transaction there in the Kafka transaction that moves its checkpoint on. Kafka shows the two at
different moments: the checkpoint may be seen while the discard record is still behind the last stable offset. So what
was read is compared with the end of the partition that readers do not see yet (R11).
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import checked_properties, end_offsets, refused
from outbox._kafka.channel import ChannelDescription
from outbox.errors import KafkaUnreachable
from outbox.protocol.discard import DiscardReason, is_manifest_key, parse_manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import check_uuid

SILENCE_SECONDS = 2.0
"""Time without records after which a partition counts as held back, in seconds."""

_POLL_SECONDS = 0.2
_READ_AT_ONCE = 1_000
_UNREADABLE = "UNREADABLE"

log = structlog.get_logger()


class DiscardIndex:
    """Set of the transactions in the discard topic."""

    def __init__(self, kafka: Mapping[str, str], admin: AdminClient, channel: ChannelDescription) -> None:
        self._admin = admin
        self._topic = channel.channel.discard_topic
        self._next = [0] * channel.partitions
        self._keys: defaultdict[str, set[bytes]] = defaultdict(set)
        self._reasons: dict[str, str] = {}
        self._topic_id = channel.half.id
        self._malformed: dict[str, tuple[int, int]] = {}
        with checked_properties():
            self._consumer = Consumer(
                {
                    "auto.offset.reset": "earliest",  # compaction may have removed the first records
                    "fetch.wait.max.ms": 100,
                    "fetch.queue.backoff.ms": 5,
                    "queued.max.messages.kbytes": 16_384,
                    **kafka,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "group.id": channel.channel.relay_group,  # never joined: partitions are assigned by hand
                    "isolation.level": "read_committed",
                }
            )

    def reasons(self) -> dict[str, str]:
        """Return the reason of each discarded transaction, by its id, as far as was read."""
        return {id_: self._reasons.get(id_, _UNREADABLE) for id_ in self._keys}

    def malformed(self) -> frozenset[tuple[int, int]]:
        """Return half partition and offset of each discarded half that cannot be parsed, as far as was read.

        Its transaction is unknown: it was discarded under an id of its own.
        """
        return frozenset(self._malformed.values())

    def read_on(self) -> frozenset[int]:
        """Read what was written up to now.

        Returns:
            The partitions of which everything is known that was written before the call. In the others a Kafka
            transaction is open.
        """
        ends = end_offsets(self._admin, {self._topic: len(self._next)}).get(self._topic)
        if ends is None:
            raise KafkaUnreachable(f"the ends of {self._topic} cannot be seen")
        self._begin_anew_where_cut(ends)
        if self._behind(ends):
            self._read(ends)
        return frozenset(range(len(ends))) - self._behind(ends)

    def close(self) -> None:
        self._consumer.close()

    def _behind(self, ends: Sequence[int]) -> set[int]:
        return {number for number, end in enumerate(ends) if self._next[number] < end}

    def _begin_anew_where_cut(self, ends: Sequence[int]) -> None:
        """Detect a partition that ends before what was read: it lost records, and others may have taken their offsets.

        Known ids are kept: keeping a row too many is harmless.
        """
        for number, end in enumerate(ends):
            if self._next[number] > end:
                place = f"{self._topic}/{number}"
                log.error("Discard partition lost records; reading it again", place=place, read=self._next[number])
                self._next[number] = 0

    def _read(self, ends: Sequence[int]) -> None:
        behind = self._behind(ends)
        self._consumer.assign([TopicPartition(self._topic, number, self._next[number]) for number in behind])
        heard = time.monotonic()
        try:
            while self._behind(ends) and time.monotonic() < heard + SILENCE_SECONDS:
                first = self._consumer.poll(_POLL_SECONDS)
                for message in [first, *self._consumer.consume(_READ_AT_ONCE, 0)] if first is not None else []:
                    if self._take(message):
                        heard = time.monotonic()
        finally:
            self._consumer.unassign()

    def _take(self, message: Message) -> bool:
        """Note a record, or the end of a partition, behind the marks of Kafka transactions; whether it is one."""
        error, number, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is None:
            self._next[number] = offset + 1
            self._note(message.key() or b"", message.value())
            return True
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            self._next[number] = max(self._next[number], offset)
            return True
        if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise refused(f"reading {self._topic}", KafkaException(error))
        return False  # librdkafka tries again

    def _note(self, key: bytes, value: bytes | None) -> None:
        id_ = key.partition(b"/")[0].decode(errors="replace")
        if not _is_id(id_):
            return  # a foreign record: its key has no transaction id, and databases would refuse it
        if value is None:
            self._forget(id_, key)
            return
        self._keys[id_].add(key)
        if is_manifest_key(key):
            self._note_manifest(id_, value)

    def _note_manifest(self, id_: str, value: bytes) -> None:
        try:
            manifest = parse_manifest(value)
        except ProtocolError:
            self._reasons[id_] = _UNREADABLE  # perhaps of a newer format: it is in the discard topic all the same
            return
        self._reasons[id_] = str(manifest.reason)
        if manifest.reason is DiscardReason.MALFORMED and manifest.topic_id == self._topic_id:
            self._malformed[id_] = (manifest.partition, manifest.offsets[0][1])

    def _forget(self, id_: str, key: bytes) -> None:
        """Remove a record; the transaction goes with its last record."""
        self._keys[id_].discard(key)
        if not self._keys[id_]:
            del self._keys[id_]
            self._reasons.pop(id_, None)
            self._malformed.pop(id_, None)


def _is_id(text: str) -> bool:
    try:
        check_uuid(text)
    except ProtocolError:
        return False
    return True
