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
"""Topics with the end offset of each of their partitions at one time: what is written later lies at or behind it."""

WAIT_SECONDS = 30.0

_KNOWN = {
    LocalState.OPEN: "the local transaction is still open: wait after its COMMIT",
    LocalState.COMMITTED: "the local transaction committed, and nothing was seen yet: do relay and checker run?",
    LocalState.UNKNOWN: "the outcome of COMMIT is not known, and nobody decided yet: do relay and checker run?",
    LocalState.ROLLED_BACK: "the local transaction was rolled back",
}


class VisibleAt(NamedTuple):
    """Where a message is visible to read_committed readers.

    Attributes:
        topic: Its real topic.
        partition: Partition of it.
        offset: Offset in the partition.
    """

    topic: str
    partition: int
    offset: int


class Watcher(Protocol):
    """Sees what becomes of published messages."""

    def ends(self) -> Ends:
        """How far topics reach, as far as it is known; a moment old."""

    def watch(self, receipt: Receipt) -> Future[VisibleAt]:
        """Watch out for a message until the future is done or cancelled.

        The future ends with the place, or with the error that `Receipt.wait_visible()` raises.
        """

    def trouble(self) -> str:
        """What hinders it, as half a sentence; empty if nothing does."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What `publish()` returns. Two receipts are equal if they name the same message.

    Args:
        transaction_id: Id of the transaction, a UUIDv7.
        position: Place of the message in it, from 0.
        topic: The message's real topic.
        end: The end of the local transaction, as this process knows it.
        watcher: Whom to ask when the message is visible.
        since: `watcher.ends()` at the moment of `publish()`: the message can only lie at or behind them.
    """

    transaction_id: str
    position: int
    topic: str = field(compare=False)
    end: TransactionEnd = field(compare=False, repr=False)
    watcher: Watcher = field(compare=False, repr=False)
    since: Ends = field(compare=False, repr=False)

    @property
    def message_id(self) -> str:
        """The id that the record on the real topic carries in its header `outbox-id`."""
        return message_id(self.transaction_id, self.position)

    def wait_visible(self, timeout: float | None = WAIT_SECONDS) -> VisibleAt:
        """Wait until a read_committed reader sees the message on its real topic.

        Call it after COMMIT: before, it waits for your own transaction. It reads the real topic, the op topic and the
        discard topic with the connection properties of the `Outbox`, and needs the right to READ them. It is meant for
        tests, scripts and requests that must answer "done", not for every message of a busy service.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            RolledBack: The local transaction, or the message's SAVEPOINT, ended without COMMIT; raised at once when
                this process knows it.
            Discarded: The relay could not deliver the transaction; it lies in the discard topic, with the reason.
            NotVisible: None of it was seen in time; the error says what is known.
            UsageError: The outbox is closed.
            ConfigurationError: The connection properties do not suit a consumer.

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
        """`wait_visible()` for asyncio: the event loop goes on. Cancelling the task leaves nobody waiting.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            RolledBack: As there.
            Discarded: As there.
            NotVisible: As there.
            UsageError: As there.
            ConfigurationError: As there.

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
        """The error for a message that will never be delivered, if this process knows that; None if it may be."""
        reason = self.end.why_never(self.position)
        if reason is None:
            return None
        return RolledBack(self.transaction_id, f"message {self.message_id} will never be visible: {reason}")

    def _watch(self) -> Future[VisibleAt]:
        never = self.why_never()
        if never is not None:
            raise never
        return self.watcher.watch(self)

    def _not_visible(self, timeout: float | None) -> NotVisible:
        trouble = self.watcher.trouble()
        return NotVisible(
            self.transaction_id,
            f"message {self.message_id} was not visible on topic {self.topic!r} within {timeout} s: "
            f"{_KNOWN[self.end.state]}{'; ' if trouble else ''}{trouble}",
        )
