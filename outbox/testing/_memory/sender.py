"""The sender of an in-memory outbox, with declared topics and no connection."""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace

from outbox._half.sender import Sender
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.topic_contract import ENVELOPE_BYTES
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox._rules.topic_description import TopicDescription
from outbox.errors import UsageError
from outbox.protocol.names import sibling_topic
from outbox.recorder import Recorder
from outbox.settings import HalfSettings

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default for `max.message.bytes`."""

_ID = str(uuid.UUID(int=0))
_ANY_PARTITION_COUNT = 2**31 - 1

Topics = Mapping[str, int] | Collection[str]


class DeclaredTopics:
    """The topics that exist for an outbox in memory.

    Args:
        topics: Their names, or the number of partitions of each; None: any topic with any partition exists.
    """

    def __init__(self, topics: Topics | None) -> None:
        self._partitions = topics if topics is None or isinstance(topics, Mapping) else dict.fromkeys(topics, 1)

    def topic(self, name: str) -> TopicDescription | None:
        """Return the description of a topic; None if topics are declared and this one is not."""
        declared = self._partitions
        if declared is None:
            return _topic(name, _ANY_PARTITION_COUNT)
        if name not in declared:
            return None
        return replace(_topic(name, declared[name]), of_channel=sibling_topic(name) in declared)


class MemorySender(Sender):
    """A sender with declared topics that refuses to connect."""

    def __init__(self, settings: HalfSettings, recorder: Recorder | None, topics: DeclaredTopics) -> None:
        super().__init__(settings, recorder)
        self._declared = topics

    @property
    def channel(self) -> ChannelDescription:
        """The channel with the settings of `outbox channel create`."""
        names = self._settings.channel
        self.require_open()
        half, op, verdict = (_topic(name, 1) for name in (names.half_topic, names.op_topic, names.verdict_topic))
        check, discard = (_topic(name, 1, ENVELOPE_BYTES) for name in (names.check_topic, names.discard_topic))
        return ChannelDescription(names, half, op, verdict, check, discard, 1)

    def real_topic(self, name: str, budget: Budget) -> TopicDescription | None:
        del budget
        self.require_open()
        return self._declared.topic(name)

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
