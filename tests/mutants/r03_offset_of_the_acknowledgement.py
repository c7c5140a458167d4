"""R3: a half counts as stored only when it was acknowledged with an offset.

librdkafka reports DUPLICATE_SEQUENCE_NUMBER as delivered, with no offset. Taken for stored, the half gets offset -1 in
the callback row and in the op marker: the relay drops the marker as one for settled halves, and the checker's answer,
which says what the row says, counts none of the halves that were read. The transaction is committed, and its message
lost.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, Message

from outbox._publish.acks import Acks
from tests.mutants.runner.mutant import Harm, Mutant


def _report(self: Acks, index: int, error: KafkaError | None, message: Message) -> None:
    """Serve a delivery report; any offset counts."""
    offset = message.offset()
    with self._lock:
        if error is not None:
            self.error = f"{error.name()}: {error.str()}"
        else:
            self._offsets[index] = -1 if offset is None else offset
        self._left -= 1
        notify = None
        if self._left == 0:
            notify, self._when_all = self._when_all, None
    if notify is not None:
        notify()


MUTANT = Mutant(
    "R3",
    Harm.LOST,
    Acks._report,
    _report,
    ("tests/unit/outbox/test_acks.py::test_an_acknowledgement_without_an_offset_does_not_count",),
)
