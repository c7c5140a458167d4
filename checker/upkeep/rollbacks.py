"""Read which transactions were rolled back by op markers, for the settlement audit (R42)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.range_reader import Span, SpanReader
from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import check_uuid
from outbox.protocol.op import OpKind

LOOK_BACK = 200_000
"""Op records of each partition that are read at first; later only those that are new."""

MOST = 50_000
"""Rolled-back transactions that are remembered, the newest ones."""

_ROLLBACK = f"{OpKind.ROLLBACK} ".encode()


class Rollbacks:
    """Reader of the transactions with a ROLLBACK op marker; thread-safe.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel.
    """

    def __init__(self, kafka: Mapping[str, str], channel: ChannelDescription) -> None:
        self._kafka = kafka
        self._channel = channel
        self._next: dict[int, int] = {}
        self._found: deque[str] = deque(maxlen=MOST)
        self._reading = threading.Lock()

    def read_on(self) -> Sequence[str]:
        """Read what was written up to now, and return the ids of all that are remembered.

        Raises:
            KafkaUnreachable: Kafka does not answer.
            ConfigurationError: It refuses.
        """
        with self._reading:
            op = self._channel.op
            with SpanReader(self._kafka, self._channel.channel.relay_group) as reader:
                spans = [self._unread(reader.whole(op.name, number)) for number in range(self._channel.partitions)]
                for message in reader.read(spans):
                    self._found.extend(rolled_back(message.value() or b"", self._channel.half.id))
            self._next = {span.partition: span.stop for span in spans}
            return list(dict.fromkeys(self._found))

    def _unread(self, whole: Span) -> Span:
        start = self._next.get(whole.partition, whole.stop - LOOK_BACK)
        return Span(whole.topic, whole.partition, max(start, whole.start), whole.stop)


def rolled_back(value: bytes, topic_id: str) -> Iterator[str]:
    """Yield the ids of an op record's rollbacks of transactions of a half topic; nearly all records have none.

    Args:
        value: Of the op record.
        topic_id: Id of the half topic.
    """
    if _ROLLBACK not in value:
        return
    for line in value.decode(errors="replace").split("\n"):
        kind, _, rest = line.partition(" ")
        id_, _, rest = rest.partition(" ")
        if kind == OpKind.ROLLBACK and rest.startswith(f"{topic_id} ") and _is_id(id_):
            yield id_


def _is_id(text: str) -> bool:
    try:
        check_uuid(text)
    except ProtocolError:
        return False
    return True
