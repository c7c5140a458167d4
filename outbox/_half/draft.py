"""A draft: the messages published in one local transaction through one outbox, before the seal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from outbox._half.validation import PlannedHalf
from outbox._publish.acceptance import MAX_BYTES, MAX_MESSAGES, too_many_bytes, too_many_messages
from outbox.errors import MessageRefused
from outbox.message import Message
from outbox.protocol.half import ANY_PARTITION, HalfOptions, OutgoingHeaders, Truth, control_headers
from outbox.protocol.positions import MAX_POSITION, Positions
from outbox.protocol.record import Record
from outbox.transaction import Receipt

_LONGEST_ID = "00000000-0000-7000-8000-000000000000"
"""Placeholder for an incarnation; all incarnations have this length."""


class Draft:
    """The messages of one transaction before the seal.

    Args:
        transaction_id: A new id for each attempt (R2).
    """

    def __init__(self, transaction_id: str) -> None:
        self.transaction_id = transaction_id
        self._messages: list[tuple[int, Message]] = []
        self._next_position = 0
        self._bytes = 0
        self._sent = 0

    def __len__(self) -> int:
        """Return the number of messages, without removed ones."""
        return len(self._messages)

    def add(self, messages: Sequence[Message]) -> list[Receipt]:
        """Add messages, all or none."""
        if self._next_position + len(messages) > MAX_MESSAGES:
            raise MessageRefused(too_many_messages())
        if self._bytes + sum(message.size() for message in messages) > MAX_BYTES:
            raise MessageRefused(too_many_bytes())
        return [self._add(message) for message in messages]

    def _add(self, message: Message) -> Receipt:
        position = self._next_position
        self._next_position += 1  # first: a signal handler may raise between these lines
        self._messages.append((position, message))
        self._bytes += message.size()
        return Receipt(self.transaction_id, position, message.topic)

    def strike(self, keep: int) -> None:
        """Remove all but the first `keep` messages: their SAVEPOINT was rolled back. Positions are not reused."""
        self._bytes -= sum(message.size() for _, message in self._messages[keep:])
        del self._messages[keep:]

    @property
    def positions(self) -> Positions:
        return Positions.of(position for position, _ in self._messages)

    @property
    def ordering_key(self) -> bytes | None:
        """The key of the first message."""
        return self._messages[0][1].key_bytes()

    @property
    def has_unsent(self) -> bool:
        """Whether there are messages that `take_unsent()` has not returned."""
        return len(self._messages) > self._sent

    def planned(self, messages: Sequence[Message], service: str, topic: str) -> list[PlannedHalf]:
        """Return the largest half that each of the messages could have, which are not added yet."""
        ordering_key = self.ordering_key if self._messages else messages[0].key_bytes()
        make = partial(self._largest_half, service=service, topic=topic, ordering_key=ordering_key)
        return [
            PlannedHalf(partial(make, message), service, Truth.ROW, ordering_key, count)
            for count, message in enumerate(messages, len(self._messages) + 1)
        ]

    def _largest_half(self, message: Message, service: str, topic: str, ordering_key: bytes | None) -> Record:
        options = partial(_options, _LONGEST_ID, ordering_key)
        headers = self._headers(MAX_POSITION, message, service, ordering_key, options)
        return Record(topic, ANY_PARTITION, message.key_bytes(), message.value_bytes(), headers)

    def take_unsent(self, service: str, incarnation: str, topic: str, partition: int) -> list[tuple[int, Record]]:
        """Return positions and halves of the messages that were not returned before.

        Args:
            topic: Half topic.
        """
        taken, self._sent = self._messages[self._sent :], len(self._messages)
        ordering_key = self.ordering_key
        options = cache(partial(_options, incarnation, ordering_key))
        halves = []
        for position, message in taken:
            headers = self._headers(position, message, service, ordering_key, options)
            halves.append((position, Record(topic, partition, message.key_bytes(), message.value_bytes(), headers)))
        return halves

    def _headers(
        self, position: int, message: Message, service: str, ordering_key: bytes | None, options: _Options
    ) -> OutgoingHeaders:
        encoded = options(message.key_bytes() == ordering_key, message.timestamp, message.immunity_ms())
        control = control_headers(
            message.topic, message.partition, self.transaction_id, position, service, Truth.ROW, encoded
        )
        return [*control, *message.header_list()]


_Options = Callable[[bool, int | None, int | None], bytes]


def _options(
    incarnation: str,
    ordering_key: bytes | None,
    has_ordering_key: bool,  # noqa: FBT001 - a cached function called with positional arguments
    timestamp: int | None,
    immunity: int | None,
) -> bytes:
    """Encode the options of a half, which are the same for nearly all halves of a transaction."""
    ordering = None if has_ordering_key else (ordering_key,)
    return HalfOptions(timestamp, immunity, ordering, incarnation).encode()
