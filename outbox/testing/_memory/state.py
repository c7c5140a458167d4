"""The state of an in-memory outbox: open transactions, and published messages for comparison."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from weakref import WeakValueDictionary

from outbox.message import Message
from outbox.protocol.half import Header
from outbox.protocol.identifiers import message_id
from outbox.transaction import Outcome


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
        not_before: The time for which it would wait.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    partition: int
    timestamp: int | None
    transaction_id: str
    message_id: str
    not_before: datetime | None = None

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
            message.not_before,
        )


_xids = itertools.count(700)  # about where a new database is
_row_ids = itertools.count(1)


def new_xid() -> int:
    """Return an xid that no transaction of this process has."""
    return next(_xids)


def row_ids(count: int) -> list[int]:
    """Return the ids of new rows."""
    return [next(_row_ids) for _ in range(count)]


class OpenPart(Protocol):
    """A participant in a local transaction that has not ended."""

    def messages(self) -> list[PublishedMessage]:
        """Return its messages so far."""


class Follower(Protocol):
    """Follows transactions of which nothing is reported: it is asked."""

    def refresh(self) -> None:
        """Publish the messages of transactions that have committed since the last call."""

    def uncommitted(self) -> list[PublishedMessage]:
        """Return the messages of open transactions."""

    def outcome(self, transaction_id: str) -> Outcome | None:
        """Return the outcome of a transaction without published messages; None if it does not follow it."""


class Memory:
    """The state of one outbox, which threads may share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: WeakValueDictionary[str, OpenPart] = WeakValueDictionary()
        self._published: list[PublishedMessage] = []
        self._outcomes: dict[str, Outcome] = {}
        self.followers: list[Follower] = []

    def opened(self, transaction_id: str, part: OpenPart) -> None:
        with self._lock:
            self._open[transaction_id] = part

    def ended(self, transaction_id: str, published: Sequence[PublishedMessage] | None) -> None:
        """Remove a participant, and store its outcome and its messages; without messages there is no row to prove it.

        Args:
            published: Messages of the participant if it committed; None if it did not.
        """
        with self._lock:
            self._open.pop(transaction_id, None)
            if published is None or published:
                self._outcomes[transaction_id] = Outcome.COMMITTED if published else Outcome.ROLLED_BACK
            self._published += published or ()

    def lost(self, transaction_id: str) -> None:
        """Remove a participant whose outcome remains unknown."""
        with self._lock:
            self._open.pop(transaction_id, None)

    def outcome(self, transaction_id: str) -> Outcome:
        with self._lock:
            if any(message.transaction_id == transaction_id for message in self.published()):
                return Outcome.COMMITTED
            if any(message.transaction_id == transaction_id for message in self.uncommitted()):
                return Outcome.OPEN
            answers = [follower.outcome(transaction_id) for follower in self.followers]
            found = next((answer for answer in answers if answer is not None), Outcome.TOO_OLD)
            return self._outcomes.get(transaction_id, found)

    def fence(self, transaction_id: str) -> Outcome:
        """Return the outcome of a transaction; one that has not committed is rolled back from now on."""
        with self._lock:
            return self._outcomes.setdefault(transaction_id, Outcome.ROLLED_BACK)

    def is_fenced(self, transaction_id: str) -> bool:
        return self._outcomes.get(transaction_id) is Outcome.ROLLED_BACK

    def published(self) -> list[PublishedMessage]:
        """Return the messages of committed transactions, in the order of their COMMITs."""
        with self._lock:
            for follower in self.followers:
                follower.refresh()
            return list(self._published)

    def cancel(self, id_: str) -> bool:
        """Remove a published message that waits for its time; return whether it was there."""
        with self._lock:
            before = self.published()
            self._published = [one for one in before if one.message_id != id_ or one.not_before is None]
            return len(self._published) < len(before)

    def uncommitted(self) -> list[PublishedMessage]:
        """Return the messages of open transactions, in the order in which these began."""
        with self._lock:
            found = [message for part in self._open.values() for message in part.messages()]
            return found + [message for follower in self.followers for message in follower.uncommitted()]

    def clear(self) -> None:
        """Remove the published messages; open transactions are not affected."""
        with self._lock:
            self.published()
            self._published.clear()
