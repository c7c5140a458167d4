"""The receipt of a publication: ids, and the wait until the message is visible on its real topic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from outbox._receipts.transaction_end import LocalState, TransactionEnd
from outbox.errors import NotVisible, RolledBack
from outbox.protocol.identifiers import message_id

Ends = Mapping[str, tuple[int, ...]]
"""Topics with the end offset of each partition at one time; later records have this offset or a higher one."""

WAIT_SECONDS = 30.0

_KNOWN = {
    LocalState.OPEN: "The local transaction is still open. Commit it before you wait",
    LocalState.COMMITTED: "The local transaction committed. Check that relay and checker are running",
    LocalState.UNKNOWN: "The outcome of COMMIT is unknown and not decided. Check that relay and checker are running",
    LocalState.ROLLED_BACK: "The local transaction was rolled back",
}


class VisibleAt(NamedTuple):
    """Where a message is visible to read_committed readers.

    Attributes:
        topic: Real topic.
        partition: Partition of the topic.
        offset: Offset in the partition.
    """

    topic: str
    partition: int
    offset: int


class Watcher(Protocol):
    """Watches for the visibility of published messages."""

    def ends(self) -> Ends:
        """Return the known end offsets of topics; they may be some seconds old."""

    def watch(self, receipt: Receipt) -> Future[VisibleAt]:
        """Watch for a message until the future is done or cancelled.

        The future's result is the record's place; its exception is one that `Receipt.wait_visible()` raises.
        """

    def trouble(self) -> str:
        """Return the present errors as a clause; an empty text if there are none."""


@dataclass(frozen=True, slots=True, repr=False)
class Receipt:
    """The result of `publish()`. Two receipts are equal if they are for the same message.

    Args:
        transaction_id: Id of the transaction, a UUIDv7.
        position: Index of the message in the transaction, from 0; for a row of the message table its id.
        topic: The message's real topic.
        end: The end of the local transaction, as observed by this process.
        watcher: Watches for the message's visibility.
        since: `watcher.ends()` at `publish()`: lower bounds of the message's offset.
    """

    transaction_id: str
    position: int
    topic: str = field(compare=False)
    end: TransactionEnd = field(compare=False, repr=False)
    watcher: Watcher = field(compare=False, repr=False)
    since: Ends = field(compare=False, repr=False)

    def __repr__(self) -> str:
        """Return the ids and the topic."""
        return f"Receipt(transaction_id={self.transaction_id!r}, position={self.position}, topic={self.topic!r})"

    @property
    def message_id(self) -> str:
        """The id that the record on the real topic carries in its header `outbox-id`."""
        return message_id(self.transaction_id, self.position)

    def wait_visible(self, timeout: float | None = WAIT_SECONDS) -> VisibleAt:
        """Wait until the message is visible to read_committed consumers of its real topic.

        Call it after COMMIT; before, it waits for the caller's own transaction. It consumes the real topic, the op
        topic and the discard topic with the connection properties of the `Outbox`, and needs the ACL READ on them. Use
        it in tests, scripts and requests that must confirm delivery, not for every message of a busy service.

        Args:
            timeout: Maximum seconds to wait; None: no limit.

        Raises:
            RolledBack: The local transaction, or the message's SAVEPOINT, ended without COMMIT; raised at once if it
                ended in this process.
            Discarded: The relay could not deliver the transaction; it is in the discard topic, with the reason.
            NotVisible: The message was not visible in time; the error contains the state of its transaction.
            UsageError: The outbox is closed, or in table mode, where it has no connection to Kafka.
            ConfigurationError: The connection properties are not valid for a consumer.

        Example:
            with Session(engine) as session, session.begin():
                receipt = outbox.publish(session, Message("orders", value=b"...", key=b"42"))
            topic, partition, offset = receipt.wait_visible(timeout=10)
        """
        future = self._watch()
        try:
            return future.result(timeout)
        except TimeoutError:
            raise self._not_visible(timeout) from None
        finally:
            future.cancel()

    async def wait_visible_async(self, timeout: float | None = WAIT_SECONDS) -> VisibleAt:  # noqa: ASYNC109 - the twin of wait_visible(), with its own error for a timeout
        """Wait as `wait_visible()` does, without blocking the event loop. The task may be cancelled.

        Args:
            timeout: Maximum seconds to wait; None: no limit.

        Raises:
            RolledBack: As for `wait_visible()`.
            Discarded: As for `wait_visible()`.
            NotVisible: As for `wait_visible()`.
            UsageError: As for `wait_visible()`.
            ConfigurationError: As for `wait_visible()`.

        Example:
            async with AsyncSession(engine) as session, session.begin():
                receipt = await outbox.publish(session, Message("orders", value=b"...", key=b"42"))
            topic, partition, offset = await receipt.wait_visible_async(timeout=10)
        """
        future = self._watch()
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise self._not_visible(timeout) from None
        finally:
            future.cancel()

    def why_never(self) -> RolledBack | None:
        """Return the error for a message that is known never to be delivered; None if it may be."""
        reason = self.end.why_never(self.position)
        if reason is None:
            return None
        return RolledBack(self.transaction_id, f"Message {self.message_id} will never be visible: {reason}.")

    def _watch(self) -> Future[VisibleAt]:
        never = self.why_never()
        if never is not None:
            raise never
        return self.watcher.watch(self)

    def _not_visible(self, timeout: float | None) -> NotVisible:
        trouble = self.watcher.trouble()
        return NotVisible(
            self.transaction_id,
            f"Message {self.message_id} was not visible on topic {self.topic!r} within {timeout} s. "
            f"{_KNOWN[self.end.state]}{'; ' if trouble else ''}{trouble}.",
        )
