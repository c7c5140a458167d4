"""Check-back: requests about overdue transactions of one half partition, to the checker and to listeners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from relay import metrics
from relay.half.kafka.check_sender import CheckSender
from relay.half.ledger.check_requests import first_half
from relay.half.ledger.ledger import Ledger
from relay.half.serving.readers import PartitionReaders


class CheckBack:
    """Sends the check requests that a ledger makes."""

    def __init__(self, ledger: Ledger, checks: CheckSender, readers: PartitionReaders) -> None:
        self._ledger = ledger
        self._checks = checks
        self._readers = readers

    def ask(self, now: int, most: int) -> None:
        """Send requests about transactions that are overdue.

        Args:
            now: The broker's time, ms.
            most: How many at most; the others stay due.
        """
        requests = self._ledger.take_due(now, min(most, self._checks.room()))
        ready = [request for request in requests if not _lacks_message(request)]
        ready += self._with_messages([request for request in requests if _lacks_message(request)])
        if ready:
            self._checks.ask(ready)
            metrics.CHECKS.labels().inc(len(ready))

    def _with_messages(self, requests: Sequence[CheckRequest]) -> list[CheckRequest]:
        """Return requests to listeners, with the messages that are not in memory."""
        ledger = self._ledger
        found = [(request, first_half(ledger.find(request.transaction_id), ledger.discards)) for request in requests]
        places = [(request, *place) for request, place in found if place]
        parked = {key: offset for _, key, offset in places if key is not None}
        halves = self._readers.discards.fetch(parked) if parked else {}
        halves |= self._readers.halves.fetch(offset for _, key, offset in places if key is None)
        return [replace(request, message=halves[offset].envelope()) for request, _, offset in places]


def _lacks_message(request: CheckRequest) -> bool:
    """Return whether the request goes to a listener, and its message is not in memory."""
    return request.truth is Truth.LISTENER and request.message is None
