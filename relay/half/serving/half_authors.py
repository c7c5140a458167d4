"""Recognises what a half partition wrote to real topics, and whether its halves are still to be delivered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox.protocol.checkpoint import parse_half_checkpoint
from outbox.protocol.half import ANY_PARTITION
from relay.half.kafka.decode import Decoder
from relay.half.kafka.half_reader import HalfReader
from relay.half.ledger.ledger import Ledger
from relay.half.state.half_records import Half
from relay.recovery.author import Found, Own, Written, backwards, written
from relay.recovery.transaction_state import UndecidedError


def is_owed(ledger: Ledger, transaction_id: str, offset: int) -> bool:
    """Return whether a half that was read is not settled yet, or is in the discard topic.

    Args:
        transaction_id: Its transaction, of which stragglers may pend when all else of it is settled.
    """
    transaction = ledger.find(transaction_id)
    if transaction is not None:
        return any(half.offset == offset for half in transaction.all_halves())
    return ledger.discards.holds(transaction_id) and any(
        offset == known for _, known in ledger.discards.refused(transaction_id).offsets
    )


FETCHED_AT_ONCE = 20

_DIGITS = 20
"""More than any offset has."""


class HalfAuthor:
    """Recognises the records of a half partition."""

    def __init__(self, ledger: Ledger, halves: HalfReader) -> None:
        self._ledger = ledger
        self._halves = halves

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. Records of other channels, and copies of the own ones, are passed over."""
        own = written_halves(found, self._ledger.partition)
        for part in backwards(0, len(own), FETCHED_AT_ONCE):
            halves = self._halves.find(own[index][1] for index in part)
            for index in reversed(part):
                record, offset = own[index]
                is_pending = is_owed(self._ledger, record.transaction_id, offset)
                if is_pending or is_made_of(record, halves.get(offset)):
                    return Own(record.record, record.offset, is_pending or self._is_ahead(offset, in_hand))
        return None

    def _is_ahead(self, offset: int, in_hand: Collection[int]) -> bool:
        """Whether the checkpoint does not settle a half that is not pending."""
        is_unread = offset >= self._ledger.progress.head() or offset in self._ledger.deferred
        return is_unread or offset in in_hand


class CheckpointAuthor:
    """Recognises the records of a half partition that a checkpoint owes."""

    def __init__(
        self, kafka: Mapping[str, str], channel: ChannelDescription, number: int, committed: TopicPartition | None
    ) -> None:
        if committed is None:
            raise UndecidedError(
                f"{channel.half.name}/{number} has no checkpoint older than the one that hangs, so the relay "
                "cannot find out which records are its own; see docs/operations/recovery.md"
            )
        self._kafka = kafka
        self._channel = channel
        self._number = number
        self._checkpoint = parse_half_checkpoint(committed.metadata or "", committed.offset, channel.half.id, number)

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. What the checkpoint does not owe is passed over."""
        del in_hand
        owed = [own for own in written_halves(found, self._number) if self._checkpoint.owes(own[1])]
        halves = self._read({offset for _, offset in owed}) if owed else {}
        for record, offset in reversed(owed):
            if is_made_of(record, halves.get(offset)):
                return Own(record.record, record.offset, is_owed=True)
        return None

    def _read(self, offsets: Collection[int]) -> Mapping[int, Half]:
        decoder = Decoder(self._channel.discard.max_message_bytes, self._channel.verdict.name)
        halves = HalfReader(self._kafka, self._channel.channel, self._number, decoder)
        try:
            return halves.find(offsets)
        finally:
            halves.close()


def written_halves(found: Iterable[Found], partition: int) -> list[tuple[Written, int]]:
    """Return what a relay wrote for a half partition, with the half offsets; the halves may be of another channel."""
    own = written(found, str(partition))
    return [(one, int(one.place)) for one in own if one.place.isdigit() and len(one.place) <= _DIGITS]


def is_made_of(found: Written, half: Half | None) -> bool:
    """Whether a record is what was made of a half; services that forward headers make others like it elsewhere."""
    control, record = half.control if half else None, found.record
    if control is None or (control.transaction_id, control.topic) != (found.transaction_id, record.topic):
        return False
    return control.partition in {ANY_PARTITION, record.partition}
