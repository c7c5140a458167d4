"""`PublishedMessage`: a message of an in-memory outbox, for comparison in tests."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.message import Message
from outbox.protocol.half import Header
from outbox.protocol.identifiers import message_id


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A published message. Unlike all other classes of the library, its `repr` shows the payload: it is for tests.

    Args:
        key: Key, as Kafka would store it.
        value: Body, or None for a tombstone.
        headers: Headers of the application and of the trace, in order and with repeated names.
        partition: Partition of the real topic, or -1 for "by key".
        timestamp: Timestamp of the message, ms since 1970, or None.
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
        """Return a message with its transaction id and its position."""
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
