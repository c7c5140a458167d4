"""Watch for the visibility of messages: one background thread with one consumer serves all receipts of an `Outbox`.

The thread starts with the first waiting receipt and ends 30 s after the last one. A receipt waits for a future, which
the consumer's sightings complete, or the end of the local transaction in this process, whichever comes first.
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
    """Watches for the visibility of messages.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel of the messages.
        ends: Returns the known end offsets of topics; messages published later have higher offsets.
    """

    def __init__(self, kafka: Mapping[str, Any], channel: Channel, ends: Callable[[], Ends]) -> None:
        self._kafka = kafka
        self._channel = channel
        self._ends = ends
        self._closed = False
        self._begin()
        follow(self)

    def _begin(self) -> None:
        """Set the initial state: no thread, no watches."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watches: set[Watch] = set()
        self._changed: SimpleQueue[Watch] = SimpleQueue()  # added or finished ones, for the thread
        self._troubles: Troubles = {}

    def start_afresh(self) -> None:
        """Reset in a forked child: the consumer belongs to the parent (R46)."""
        self._begin()

    def ends(self) -> Ends:
        """Return the known end offsets of topics; they may be some seconds old."""
        return self._ends()

    def trouble(self) -> str:
        """Return the consumer's present errors as a clause."""
        return "; ".join(list(self._troubles.values()))

    def watch(self, receipt: Receipt) -> Future[VisibleAt]:
        """Watch for a message until the future is done or cancelled, without waiting for Kafka.

        Raises:
            UsageError: The outbox is closed.
        """
        watch = Watch(receipt)
        self._enter(watch)
        watch.follow(self._leave)
        return watch.future

    def close(self) -> None:
        """End the thread; raise `UsageError` to the callers that wait."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._fail(UsageError("The outbox was closed while a receipt was waiting. Wait before close()."))
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        self._changed = SimpleQueue()  # it is no longer read, and its watches would keep results alive

    def _enter(self, watch: Watch) -> None:
        with self._lock:
            if self._closed:
                raise UsageError("The outbox is closed. Wait for receipts before close().")
            self._watches.add(watch)
            self._changed.put(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outbox-visibility", daemon=True)
                self._thread.start()

    def _leave(self, watch: Watch) -> None:
        """Remove a finished watch, without a lock: any thread may call it at any point."""
        self._watches.discard(watch)
        self._changed.put(watch)

    def _run(self) -> None:
        try:
            with VisibilityReader(self._kafka, self._channel, self._changed, self._troubles) as reader:
                while self._goes_on(reader):
                    reader.turn()
        except Exception as error:  # noqa: BLE001 - it is raised to the waiting callers; the next one restarts the thread
            log.warning("Reader of receipts stopped: %s", error)
            self._fail(error)

    def _goes_on(self, reader: VisibilityReader) -> bool:
        """Return whether receipts wait, or did in the last 30 s. If not, the next one starts a new thread."""
        with self._lock:
            if self._closed or (reader.is_idle and not self._watches):
                self._thread = None
            return self._thread is not None

    def _fail(self, error: Exception) -> None:
        """Fail all watches: the thread ends."""
        with self._lock:
            self._thread = None
            for watch in list(self._watches):
                watch.fail(error)
