"""What an application published, as a record that tests compare."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.message import Message
from outbox.protocol.half import Header
from outbox.protocol.identifiers import message_id


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A message as it was published. Unlike everything else in the library, it shows its payload: it is for tests.

    Args:
        topic: Real topic.
        key: Key, as Kafka would store it.
        value: Body, or None for a tombstone.
        headers: The user's own headers, order and repeats kept, with those of the trace.
        partition: Real queue id, or -1 for "by key".
        timestamp: The user's own timestamp, ms since 1970, or None.
        transaction_id: Id of its transaction, a UUIDv7.
        message_id: The id that the record on a real topic would carry in its header `outbox-id`.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    partition: int
    timestamp: int | None
    transaction_id: str
    message_id: str

    @classmethod
    def of(cls, message: Message, transaction_id: str, position: int) -> PublishedMessage:
        """A message with its place in a transaction."""
        return cls(
            message.topic,
            message.key_bytes(),
            message.value_bytes(),
            tuple(message.header_list()),
            message.partition,
            message.timestamp,
            transaction_id,
            message_id(transaction_id, position),
        )
