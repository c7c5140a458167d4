"""Read which transactions were rolled back by op markers, for the settlement audit (R42)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.range_reader import Span, SpanReader
from outbox._kafka.record_headers import headers_of
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Headers
from outbox.protocol.names import Place
from outbox.protocol.op import OpEntry, OpKind, parse_op

LOOK_BACK = 200_000
"""Op records of each op and verdict partition that are read at first; later only those that are new."""

MOST = 50_000
"""Rolled-back transactions that are remembered, the newest ones."""

_ROLLBACK = f"{OpKind.ROLLBACK} ".encode()


class Rollbacks:
    """Reader of the transactions with a ROLLBACK op marker; thread-safe."""

    def __init__(self, kafka: Mapping[str, str], channel: ChannelDescription) -> None:
        self._kafka = kafka
        self._channel = channel
        self._next: dict[Place, int] = {}
        self._found: deque[str] = deque(maxlen=MOST)
        self._reading = threading.Lock()

    def read_on(self) -> Sequence[str]:
        """Read what was written up to now, and return the ids of all that are remembered."""
        with self._reading:
            topics, numbers = (self._channel.op, self._channel.verdict), range(self._channel.partitions)
            with SpanReader(self._kafka, self._channel.channel.relay_group) as reader:
                spans = [self._unread(reader.whole(topic.name, number)) for topic in topics for number in numbers]
                for message in reader.read(spans):
                    is_verdict = message.topic() == self._channel.verdict.name
                    ops = rolled_back(message.value() or b"", headers_of(message), verdict=is_verdict)
                    ours = (self._channel.half.id, message.partition())
                    self._found.extend(op.transaction_id for op in ops if (op.topic_id, op.partition) == ours)
            self._next = {(span.topic, span.partition): span.stop for span in spans}
            return list(dict.fromkeys(self._found))

    def _unread(self, whole: Span) -> Span:
        start = self._next.get((whole.topic, whole.partition), whole.stop - LOOK_BACK)
        return Span(whole.topic, whole.partition, max(start, whole.start), whole.stop)


def rolled_back(value: bytes, headers: Headers, *, verdict: bool) -> Sequence[OpEntry]:
    """Return the rollbacks in a record that a relay does not drop; nearly all records have none."""
    if _ROLLBACK not in value:
        return ()
    try:
        _, entries = parse_op(value, headers, verdict=verdict)
    except ProtocolError:
        return ()
    return [entry for entry in entries if entry.kind is OpKind.ROLLBACK]
