"""The sender of an in-memory outbox, with declared topics and no connection."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.topic_contract import ENVELOPE_BYTES
from outbox._publish.sender import Sender
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox._rules.topic_description import TopicDescription
from outbox.errors import UsageError
from outbox.protocol.names import sibling_topic

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default for `max.message.bytes`."""

_ID = str(uuid.UUID(int=0))
_ANY_PARTITION_COUNT = 2**31 - 1

Topics = Mapping[str, int] | Collection[str]


class MemorySender(Sender):
    """A sender with declared topics that refuses to connect."""

    _declared: Mapping[str, int] | None = None

    def declare(self, topics: Topics | None) -> None:
        """Declare the existing topics.

        Args:
            topics: Their names, or the number of partitions of each; None: any topic with any partition exists.
        """
        if topics is not None:
            self._declared = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)

    @property
    def channel(self) -> ChannelDescription:
        """The channel with the settings of `outbox channel create`."""
        names = self._settings.channel
        self.require_open()
        half, op, verdict = (_topic(name, 1) for name in (names.half_topic, names.op_topic, names.verdict_topic))
        check, discard = (_topic(name, 1, ENVELOPE_BYTES) for name in (names.check_topic, names.discard_topic))
        return ChannelDescription(names, half, op, verdict, check, discard, 1)

    def real_topic(self, name: str, budget: Budget) -> TopicDescription | None:
        """Return the description of a real topic; None if topics are declared and this one is not."""
        del budget
        self.require_open()
        if self._declared is None:
            return _topic(name, _ANY_PARTITION_COUNT)
        if name not in self._declared:
            return None
        return replace(_topic(name, self._declared[name]), of_channel=sibling_topic(name) in self._declared)

    def real_topic_now(self, name: str, budget: Budget) -> TopicDescription | None:
        """Return the same as `real_topic()`: declared topics do not change."""
        return self.real_topic(name, budget)

    def ping(self, waiting: Waiting = BLOCKING) -> None:
        """Check only that the outbox is open."""
        del waiting
        self.require_open()

    def _start(self) -> None:
        raise UsageError(
            "An in-memory outbox has no Kafka. With TransactionalProducer, pass session= and serve_checks=False."
        )


def _topic(name: str, partitions: int, max_message_bytes: int = MAX_MESSAGE_BYTES) -> TopicDescription:
    return TopicDescription(name, _ID, partitions, 1, {"max.message.bytes": str(max_message_bytes)})
