"""The progress of a table source in Kafka: the number of its last batch, as the committed offset of a group."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from outbox._kafka.admin import checked_properties
from outbox._kafka.groups import committed_checkpoints
from outbox._rules.source_progress import Committed
from outbox.errors import KafkaUnreachable
from outbox.protocol.names import Channel
from relay.delivery.call_watch import calling
from relay.recovery.author import Found, Own, written
from relay.recovery.hanging_checkpoint import CHECKPOINT_SECONDS, Checkpointed, Word, refuse_undone_end, why_unreadable
from relay.table.owned_table import OwnedTable


class KafkaProgress:
    """Reads the progress of one table source, and makes the offsets that commit it.

    No consumer ever joins the group. Its owner is fenced by the transactional id.

    Args:
        channel: The channel; the offset is committed for partition 0 of its half topic, or of its progress topic.
    """

    def __init__(self, kafka: Mapping[str, Any], channel: Channel, source: str, word: Word) -> None:
        self.owner = Checkpointed.table_source(channel, source)
        self.group = self.owner.group
        self._kafka = kafka
        self._word = word
        with checked_properties():
            self._consumer = Consumer(
                {**kafka, "enable.auto.commit": False, "group.id": self.group, "isolation.level": "read_committed"}
            )
        self.metadata: bytes = self._consumer.consumer_group_metadata()
        """For `send_offsets_to_transaction`; it names no member."""

    def read(self) -> Committed | None:
        """Return what is committed; None: nothing."""
        try:
            with calling(f"reading the progress of {self.owner.name}"):
                (place,) = self._consumer.committed([TopicPartition(*self.owner.place)], CHECKPOINT_SECONDS)
        except KafkaException as error:
            raise why_unreadable(error, self._kafka, self.group, self.owner.place) from error
        if place.error is not None:
            raise KafkaUnreachable(f"the progress of group {self.group}: {place.error.str()}")
        committed = None if place.offset < 0 else place
        refuse_undone_end(self._kafka, self.owner, committed, self._word)
        return None if committed is None else Committed.parse(committed.offset, committed.metadata)

    def shown(self) -> int:
        """Return the last batch that Kafka shows, whatever it holds back; -1: none."""
        place = committed_checkpoints(self._kafka, self.group, [self.owner.place], stable=False).get(self.owner.place)
        return -1 if place is None else place.offset

    def offsets(self, committed: Committed) -> list[TopicPartition]:
        return [TopicPartition(*self.owner.place, committed.batch, committed.metadata)]

    def close(self) -> None:
        self._consumer.close()


class RowAuthor:
    """Recognises the records of a table source, by its origin and the transaction ids of its rows.

    Args:
        is_delivered: Whether the newest batch was delivered; its rows may be in the table nevertheless.
    """

    def __init__(self, table: OwnedTable, *, is_delivered: bool) -> None:
        self._table = table
        self._is_delivered = is_delivered

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. A record whose row is gone was delivered.

        A record of another transaction than the row's is of another table of the same name: it is passed over.
        """
        del in_hand
        own = [(record, record.place.decode(errors="replace")) for record in written(found, self._table.origin)]
        there = self._table.transaction_ids({id_ for _, id_ in own}) if own else {}
        for record, id_ in reversed(own):
            if record.transaction_id in there.get(id_, {record.transaction_id}):
                return Own(record.record, record.offset, id_ in there and id_ not in self._delivered())
        return None

    def _delivered(self) -> set[str]:
        return {str(id_) for id_ in self._table.progress().ids} if self._is_delivered else set()
