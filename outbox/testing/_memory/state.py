"""The state of an in-memory outbox: open transactions, published messages for comparison, and requested failures."""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from dataclasses import dataclass
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


_FIRST_XID = 700
"""About where a new database is."""


class CommitFailure(enum.Enum):
    """How a COMMIT fails on request."""

    PUBLISH_FAILED = "Kafka does not acknowledge the halves"
    FENCED = "the checker decides ROLLBACK before COMMIT"
    LOST_AND_COMMITTED = "COMMIT succeeds and its reply is lost"
    LOST_AND_ROLLED_BACK = "COMMIT fails and its reply is lost"


class OpenPart(Protocol):
    """A participant in a local transaction that has not ended."""

    def messages(self) -> list[PublishedMessage]:
        """Return its messages so far."""


class Memory:
    """The state of one outbox, which threads may share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: WeakValueDictionary[str, OpenPart] = WeakValueDictionary()
        self._published: list[PublishedMessage] = []
        self._outcomes: dict[str, Outcome] = {}
        self._next_row = 1
        self._failing_publications = 0
        self._commit_failures: list[CommitFailure] = []

    # --- transactions -------------------------------------------------------------------------------------------

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

    def row_ids(self, count: int) -> tuple[int, Sequence[int]]:
        with self._lock:
            first, self._next_row = self._next_row, self._next_row + count
        return _FIRST_XID + first, range(first, first + count)

    def outcome(self, transaction_id: str) -> Outcome:
        with self._lock:
            part = self._open.get(transaction_id)
            if part is not None and part.messages():
                return Outcome.OPEN
            return self._outcomes.get(transaction_id, Outcome.TOO_OLD)

    def fence(self, transaction_id: str) -> Outcome:
        """Return the outcome of a transaction; one that has not committed is rolled back from now on."""
        with self._lock:
            return self._outcomes.setdefault(transaction_id, Outcome.ROLLED_BACK)

    def is_fenced(self, transaction_id: str) -> bool:
        return self._outcomes.get(transaction_id) is Outcome.ROLLED_BACK

    # --- published messages -------------------------------------------------------------------------------------

    def published(self) -> list[PublishedMessage]:
        """Return the messages of committed transactions, in the order of their COMMITs."""
        with self._lock:
            return list(self._published)

    def uncommitted(self) -> list[PublishedMessage]:
        """Return the messages of open transactions, in the order in which these began."""
        with self._lock:
            return [message for part in self._open.values() for message in part.messages()]

    def clear(self) -> None:
        """Remove the published messages and the requested failures; open transactions are not affected."""
        with self._lock:
            self._published.clear()
            self._commit_failures.clear()
            self._failing_publications = 0

    # --- failures -----------------------------------------------------------------------------------------------

    def fail_publication(self) -> None:
        with self._lock:
            self._failing_publications += 1

    def fail_commit(self, failure: CommitFailure) -> None:
        with self._lock:
            self._commit_failures.append(failure)

    def publication_fails(self) -> bool:
        with self._lock:
            if not self._failing_publications:
                return False
            self._failing_publications -= 1
            return True

    def commit_failure(self) -> CommitFailure | None:
        """Return how this COMMIT must fail, and remove the request; None if it must not fail."""
        with self._lock:
            return self._commit_failures.pop(0) if self._commit_failures else None
