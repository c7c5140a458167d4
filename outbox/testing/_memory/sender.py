"""The cluster of an in-memory outbox: topics that are declared, and nothing that is sent."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping

from outbox._kafka.admin import TopicDescription
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.topic_contract import ENVELOPE_BYTES
from outbox._publish.sender import Sender
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox.errors import UsageError

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default for `max.message.bytes`."""

_ID = str(uuid.UUID(int=0))
_ANY_PARTITION_COUNT = 2**31 - 1

Topics = Mapping[str, int] | Collection[str]


class MemorySender(Sender):
    """Knows topics, and refuses to connect."""

    _declared: Mapping[str, int] | None = None

    def declare(self, topics: Topics | None) -> None:
        """Say what topics there are.

        Args:
            topics: Their names, or the number of partitions of each; None: any topic, with any partition.
        """
        if topics is not None:
            self._declared = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; one, if topics are not declared."""
        return 1 if self._declared is None else self._declared[topic]

    @property
    def channel(self) -> ChannelDescription:
        """A channel as `outbox channel create` makes it.

        Raises:
            UsageError: The outbox is closed.
        """
        names = self._settings.channel
        self._require_open()
        half, op = _topic(names.half_topic, 1), _topic(names.op_topic, 1)
        check, discard = (_topic(name, 1, ENVELOPE_BYTES) for name in (names.check_topic, names.discard_topic))
        return ChannelDescription(names, half, op, check, discard, 1)

    def real_topic(self, name: str, budget: Budget) -> TopicDescription | None:
        """A real topic, or None if topics are declared and this one is not.

        Raises:
            UsageError: The outbox is closed.
        """
        del budget
        self._require_open()
        if self._declared is None:
            return _topic(name, _ANY_PARTITION_COUNT)
        return _topic(name, self._declared[name]) if name in self._declared else None

    def real_topic_now(self, name: str, budget: Budget) -> TopicDescription | None:
        """Return the same as `real_topic()`: what is declared does not change."""
        return self.real_topic(name, budget)

    def ping(self, waiting: Waiting = BLOCKING) -> None:
        """Nothing that could fail.

        Raises:
            UsageError: The outbox is closed.
        """
        del waiting
        self._require_open()

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("the outbox is closed: make a new one")

    def _start(self) -> None:
        raise UsageError(
            "an in-memory outbox has no Kafka: with TransactionalProducer, hand over a session= and serve_checks=False"
        )


def _topic(name: str, partitions: int, max_message_bytes: int = MAX_MESSAGE_BYTES) -> TopicDescription:
    return TopicDescription(name, _ID, partitions, 1, {"max.message.bytes": str(max_message_bytes)})
