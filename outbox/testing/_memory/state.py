"""What an in-memory outbox remembers: open transactions, what was published, and what is to fail next."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Protocol
from weakref import WeakValueDictionary

from outbox._receipts.receipt import Ends, Receipt, VisibleAt
from outbox.errors import UsageError
from outbox.outcome import Outcome
from outbox.protocol.partitioner import partition_for_key
from outbox.testing.published import PublishedMessage


class CommitFailure(enum.Enum):
    """How a COMMIT fails that is told to fail."""

    PUBLISH_FAILED = "Kafka does not acknowledge the halves"
    FENCED = "the checker was first"
    LOST_AND_COMMITTED = "its reply gets lost, and it succeeded"
    LOST_AND_ROLLED_BACK = "its reply gets lost, and it did not succeed"


class OpenPart(Protocol):
    """A part in a local transaction that has not ended."""

    def messages(self) -> list[PublishedMessage]:
        """What is published in it so far."""


class Memory:
    """The memory of one outbox; threads may share it. It is the watcher of the outbox's receipts, too.

    Args:
        partitions: How many partitions a topic has.
    """

    def __init__(self, partitions: Callable[[str], int]) -> None:
        self._partitions = partitions
        self._lock = threading.RLock()
        self._open: WeakValueDictionary[str, OpenPart] = WeakValueDictionary()
        self._published: list[PublishedMessage] = []
        self._places: dict[str, VisibleAt] = {}
        self._ends: Counter[tuple[str, int]] = Counter()
        self._outcomes: dict[str, Outcome] = {}
        self._failing_publications = 0
        self._commit_failures: list[CommitFailure] = []
        self._closed = False

    # --- transactions -------------------------------------------------------------------------------------------

    def opened(self, transaction_id: str, part: OpenPart) -> None:
        """A part began."""
        with self._lock:
            self._open[transaction_id] = part

    def ended(self, transaction_id: str, published: Sequence[PublishedMessage] | None) -> None:
        """A part ended.

        Args:
            transaction_id: Its transaction.
            published: Its messages if it committed; None if it did not.
        """
        with self._lock:
            self._open.pop(transaction_id, None)
            self._outcomes[transaction_id] = Outcome.ROLLED_BACK if published is None else Outcome.COMMITTED
            for message in published or ():
                self._published.append(message)
                self._places[message.message_id] = self._place(message)

    def lost(self, transaction_id: str) -> None:
        """Nobody will ever see how a part ended."""
        with self._lock:
            self._open.pop(transaction_id, None)

    def _place(self, message: PublishedMessage) -> VisibleAt:
        partition = message.partition
        if partition < 0:
            partition = partition_for_key(message.key or b"", self._partitions(message.topic))
        offset = self._ends[message.topic, partition]
        self._ends[message.topic, partition] += 1
        return VisibleAt(message.topic, partition, offset)

    def outcome(self, transaction_id: str) -> Outcome:
        """What became of a transaction; the question fences one that has not committed, as the real one does."""
        with self._lock:
            return self._outcomes.setdefault(transaction_id, Outcome.ROLLED_BACK)

    def is_fenced(self, transaction_id: str) -> bool:
        """Whether somebody asked for the outcome of an open transaction."""
        return self._outcomes.get(transaction_id) is Outcome.ROLLED_BACK

    # --- what tests look at -------------------------------------------------------------------------------------

    def published(self) -> list[PublishedMessage]:
        """What was published by transactions that committed, in the order of their COMMITs."""
        with self._lock:
            return list(self._published)

    def uncommitted(self) -> list[PublishedMessage]:
        """What was published in transactions that have not ended, in the order in which they began."""
        with self._lock:
            return [message for part in self._open.values() for message in part.messages()]

    def clear(self) -> None:
        """Forget what was published, and what is to fail; transactions that are open go on."""
        with self._lock:
            self._published.clear()
            self._commit_failures.clear()
            self._failing_publications = 0

    # --- failures -----------------------------------------------------------------------------------------------

    def fail_publication(self) -> None:
        """Let one more publication fail."""
        with self._lock:
            self._failing_publications += 1

    def fail_commit(self, failure: CommitFailure) -> None:
        """Let one more COMMIT fail."""
        with self._lock:
            self._commit_failures.append(failure)

    def publication_fails(self) -> bool:
        """Whether this publication is one that was told to fail."""
        with self._lock:
            if not self._failing_publications:
                return False
            self._failing_publications -= 1
            return True

    def commit_failure(self) -> CommitFailure | None:
        """How this COMMIT was told to fail, if it was."""
        with self._lock:
            return self._commit_failures.pop(0) if self._commit_failures else None

    # --- receipts -----------------------------------------------------------------------------------------------

    def ends(self) -> Ends:
        """None need to be known."""
        return {}

    def trouble(self) -> str:
        """None."""
        return ""

    def watch(self, receipt: Receipt) -> Future[VisibleAt]:
        """A future that ends with the transaction.

        Raises:
            UsageError: The outbox is closed.
        """
        if self._closed:
            raise UsageError("the outbox is closed: wait for receipts before close()")
        future: Future[VisibleAt] = Future()

        def look() -> None:
            never, place = receipt.why_never(), self._places.get(receipt.message_id)
            with suppress(InvalidStateError):  # it is over already
                if never is not None:
                    future.set_exception(never)
                elif place is not None:
                    future.set_result(place)

        receipt.end.listen(look)
        future.add_done_callback(lambda _: receipt.end.stop_listening(look))
        look()
        return future

    def close(self) -> None:
        """Answer no receipts any more."""
        self._closed = True
