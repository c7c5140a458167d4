"""A draft: the messages published in one local transaction through one outbox, before the seal."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from outbox._publish.validation import PlannedHalf
from outbox._receipts import Receipt, TransactionEnd
from outbox.errors import MessageRefused
from outbox.message import Message
from outbox.protocol.half import ANY_PARTITION, HalfOptions, OutgoingHeaders, Truth, control_headers
from outbox.protocol.positions import MAX_POSITION, Positions
from outbox.protocol.record import Record

MAX_BYTES = 64_000_000
"""Maximum size of the messages of one transaction."""

_LONGEST_ID = "00000000-0000-7000-8000-000000000000"
"""Placeholder for an incarnation; all incarnations have this length."""


class Draft:
    """The messages of one transaction before the seal.

    Args:
        transaction_id: A new id for each attempt (R2).
    """

    def __init__(self, transaction_id: str) -> None:
        self.transaction_id = transaction_id
        self.end = TransactionEnd()
        self._messages: list[tuple[int, Message]] = []
        self._next_position = 0
        self._bytes = 0
        self._sent = 0

    def __len__(self) -> int:
        """Return the number of messages, without removed ones."""
        return len(self._messages)

    def add(self, message: Message) -> Receipt:
        """Add a message.

        Raises:
            MessageRefused: The transaction would have more than 10,000 messages or 64 MB.
        """
        size = message.size()
        if self._next_position > MAX_POSITION:
            raise MessageRefused(
                f"The transaction has {MAX_POSITION + 1} messages, the maximum. Publish further ones in another one."
            )
        if self._bytes + size > MAX_BYTES:
            raise MessageRefused(
                f"The transaction would exceed {MAX_BYTES} bytes of messages. Publish further ones in another one."
            )
        position = self._next_position
        self._next_position += 1  # first: a signal handler may raise between these lines
        self._messages.append((position, message))
        self._bytes += size
        return Receipt(self.transaction_id, position, message.topic, self.end)

    def strike(self, keep: int) -> None:
        """Remove all but the first `keep` messages: their SAVEPOINT was rolled back. Positions are not reused."""
        self.end.strike(position for position, _ in self._messages[keep:])
        self._bytes -= sum(message.size() for _, message in self._messages[keep:])
        del self._messages[keep:]

    @property
    def positions(self) -> Positions:
        """The positions of the messages."""
        return Positions.of(position for position, _ in self._messages)

    @property
    def ordering_key(self) -> bytes | None:
        """The key of the first message."""
        return self._messages[0][1].key_bytes()

    @property
    def has_unsent(self) -> bool:
        """Whether there are messages that `take_unsent()` has not returned."""
        return len(self._messages) > self._sent

    def planned(self, message: Message, group: str, topic: str) -> PlannedHalf:
        """Return the largest half that a message could have.

        Args:
            message: A message that is not added yet.
            topic: Half topic.
        """
        ordering_key = self.ordering_key if self._messages else message.key_bytes()
        make = partial(self._largest_half, message, group, topic, ordering_key)
        return PlannedHalf(make, group, Truth.ROW, ordering_key, len(self._messages) + 1)

    def _largest_half(self, message: Message, group: str, topic: str, ordering_key: bytes | None) -> Record:
        options = partial(_options, _LONGEST_ID, ordering_key)
        headers = self._headers(MAX_POSITION, message, group, ordering_key, options)
        return Record(topic, ANY_PARTITION, message.key_bytes(), message.value_bytes(), headers)

    def take_unsent(self, group: str, incarnation: str, topic: str, partition: int) -> list[tuple[int, Record]]:
        """Return positions and halves of the messages that were not returned before.

        Args:
            topic: Half topic.
        """
        taken, self._sent = self._messages[self._sent :], len(self._messages)
        ordering_key = self.ordering_key
        options = cache(partial(_options, incarnation, ordering_key))
        halves = []
        for position, message in taken:
            headers = self._headers(position, message, group, ordering_key, options)
            halves.append((position, Record(topic, partition, message.key_bytes(), message.value_bytes(), headers)))
        return halves

    def _headers(
        self, position: int, message: Message, group: str, ordering_key: bytes | None, options: _Options
    ) -> OutgoingHeaders:
        encoded = options(message.key_bytes() == ordering_key, message.timestamp, message.immunity_ms())
        control = control_headers(
            message.topic, message.partition, self.transaction_id, position, group, Truth.ROW, encoded
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
