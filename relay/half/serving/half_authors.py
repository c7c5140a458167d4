"""Recognises what a half partition wrote to real topics, and whether its halves are still to be delivered."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Self

from confluent_kafka import TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint
from relay.half.batching.delivered_record import Written, is_made_of, parse_delivered
from relay.half.kafka.decode import Decoder
from relay.half.kafka.half_reader import HalfReader
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.owed import is_owed
from relay.half.state.half_records import Half
from relay.recovery.author import Found, Own, backwards
from relay.recovery.transaction_state import UndecidedError

FETCHED_AT_ONCE = 20


class HalfAuthor:
    """Recognises the records of a half partition."""

    def __init__(self, ledger: Ledger, halves: HalfReader) -> None:
        self._ledger = ledger
        self._halves = halves

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. Records of other channels, and copies of the own ones, are passed over."""
        written = [record for record in _written(found) if record.half_partition == self._ledger.partition]
        for part in backwards(0, len(written), FETCHED_AT_ONCE):
            halves = self._halves.find(written[index].half_offset for index in part)
            for index in reversed(part):
                record = written[index]
                half = halves.get(record.half_offset)
                if self._is_pending(record) or (half and is_made_of(record, half)):
                    return Own(record.record, record.offset, self._is_owed(record, in_hand))
        return None

    def _is_pending(self, record: Written) -> bool:
        return is_owed(self._ledger, record.transaction_id, record.half_offset)

    def _is_owed(self, record: Written, in_hand: Collection[int]) -> bool:
        """Whether its half is still to be delivered, by the checkpoint."""
        offset = record.half_offset
        is_unread = offset >= self._ledger.progress.head() or offset in self._ledger.deferred
        return is_unread or offset in in_hand or self._is_pending(record)


class CheckpointAuthor:
    """Recognises the records of a half partition that a checkpoint owes."""

    def __init__(
        self, kafka: Mapping[str, str], channel: ChannelDescription, number: int, checkpoint: HalfCheckpoint
    ) -> None:
        self._kafka = kafka
        self._channel = channel
        self._number = number
        self._checkpoint = checkpoint

    @classmethod
    def of(
        cls, kafka: Mapping[str, str], channel: ChannelDescription, number: int, committed: TopicPartition | None
    ) -> Self:
        """Return what recognises the records that a committed checkpoint owes."""
        if committed is None:
            raise UndecidedError(
                f"{channel.half.name}/{number} has no checkpoint older than the one that hangs, so the relay "
                "cannot find out which records are its own; see docs/operations/recovery.md"
            )
        checkpoint = parse_half_checkpoint(committed.metadata or "", committed.offset, channel.half.id, number)
        return cls(kafka, channel, number, checkpoint)

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. What the checkpoint does not owe is passed over."""
        del in_hand
        owed = [record for record in _written(found) if self._owes(record)]
        halves = self._read({record.half_offset for record in owed}) if owed else {}
        for record in reversed(owed):
            half = halves.get(record.half_offset)
            if half is not None and is_made_of(record, half):
                return Own(record.record, record.offset, is_owed=True)
        return None

    def _owes(self, record: Written) -> bool:
        return record.half_partition == self._number and self._checkpoint.owes(record.half_offset)

    def _read(self, offsets: Collection[int]) -> Mapping[int, Half]:
        decoder = Decoder(self._channel.discard.max_message_bytes, self._channel.verdict.name)
        halves = HalfReader(self._kafka, self._channel.channel, self._number, decoder)
        try:
            return halves.find(offsets)
        finally:
            halves.close()


def _written(found: Sequence[Found]) -> list[Written]:
    parsed = (parse_delivered(record, offset) for record, offset in found)
    return [written for written in parsed if written is not None]
