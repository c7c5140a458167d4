"""Sees when messages become visible: one background thread with one consumer serves all receipts of an `Outbox`.

The thread starts when somebody waits and ends when nobody did for a while. Whoever waits holds a future; what ends it
are the reader's sightings in Kafka and the end of the local transaction in this process, whichever comes first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from outbox._kafka.forks import follow
from outbox._receipts.receipt import Ends, Receipt, VisibleAt
from outbox._receipts.visibility_reader import Troubles, VisibilityReader, Watch
from outbox.errors import UsageError
from outbox.protocol.names import Channel

log = logging.getLogger("outbox")

_CLOSE_SECONDS = 5.0


class Visibility:
    """Watches out for messages.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel through which the messages go.
        ends: How far topics reach, as far as it is known; what was published later lies behind.
    """

    def __init__(self, kafka: Mapping[str, Any], channel: Channel, ends: Callable[[], Ends]) -> None:
        self._kafka = kafka
        self._channel = channel
        self._ends = ends
        self._closed = False
        self._begin()
        follow(self)

    def _begin(self) -> None:
        """Have no thread, and nobody who waits."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watches: set[Watch] = set()
        self._changed: SimpleQueue[Watch] = SimpleQueue()  # those that came or went, for the thread
        self._troubles: Troubles = {}

    def start_afresh(self) -> None:
        """Begin again in a forked child: the reader is the parent's (R46)."""
        self._begin()

    def ends(self) -> Ends:
        """How far topics reach, as far as it is known; a moment old."""
        return self._ends()

    def trouble(self) -> str:
        """The reader's present errors, as half a sentence."""
        return "; ".join(list(self._troubles.values()))

    def watch(self, receipt: Receipt) -> Future[VisibleAt]:
        """Watch out for a message until the future is done or cancelled. It never waits for Kafka.

        Raises:
            UsageError: The outbox is closed.
        """
        watch = Watch(receipt)
        self._enter(watch)
        watch.follow(self._leave)
        return watch.future

    def close(self) -> None:
        """End the thread; those who wait get `UsageError`."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._fail(UsageError("the outbox was closed while somebody waited for a receipt: wait before close()"))
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        self._changed = SimpleQueue()  # nobody reads it any more, and watches hold what their futures hold

    def _enter(self, watch: Watch) -> None:
        with self._lock:
            if self._closed:
                raise UsageError("the outbox is closed: wait for receipts before close()")
            self._watches.add(watch)
            self._changed.put(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outbox-visibility", daemon=True)
                self._thread.start()

    def _leave(self, watch: Watch) -> None:
        """A watch is over. Called by any thread, in the middle of anything: it takes no lock."""
        self._watches.discard(watch)
        self._changed.put(watch)

    def _run(self) -> None:
        try:
            with VisibilityReader(self._kafka, self._channel, self._changed, self._troubles) as reader:
                while self._goes_on(reader):
                    reader.turn()
        except Exception as error:  # noqa: BLE001 - whoever waits must learn of it; the next one starts anew
            log.warning("the reader of receipts ends: %s", error)
            self._fail(error)

    def _goes_on(self, reader: VisibilityReader) -> bool:
        """Whether somebody waits, or waited a moment ago. If not, the next who comes starts a new thread."""
        with self._lock:
            if self._closed or (reader.is_idle and not self._watches):
                self._thread = None
            return self._thread is not None

    def _fail(self, error: Exception) -> None:
        """Nobody reads any more."""
        with self._lock:
            self._thread = None
            for watch in list(self._watches):
                watch.fail(error)
