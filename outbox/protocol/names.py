"""Names: topics, groups and transactional ids of a channel, control headers, reserved prefixes.

Group ids and transactional ids derive from the channel's name and are no settings, so that two relays of one
channel can never miss each other's fence.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from outbox.protocol.errors import ProtocolError

FORMAT_VERSION = 1

HEADER_PREFIX = "outbox-"
"""User headers with this prefix are refused at the producer and stripped at the relay."""

# On halves.
TARGET_HEADER = "outbox-target"
TRANSACTION_HEADER = "outbox-transaction"
SERVICE_HEADER = "outbox-service"
OPTIONS_HEADER = "outbox-options"

# On op records.
OP_HEADER = "outbox-op"

# On real topics.
MESSAGE_ID_HEADER = "outbox-id"
ORIGIN_HEADER = "outbox-origin"
FOREIGN_ORIGIN = "foreign:"  # before the name of the table source, if it delivers a foreign table
COUNT_HEADER = "outbox-count"
LATE_HEADER = "outbox-late"

# In the discard topic, on the substitute for a half that does not fit there.
STUB_HEADER = "outbox-stub"

DEFAULT_CHANNEL = "outbox"

_CHANNEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_SERVICE = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SUFFIXES = (".half", ".op", ".verdict", ".check", ".discard")

PLATFORM_PREFIXES = ("_", "connect-")
"""Beginnings of names by which other platforms keep their own state: Schema Registry, Kafka Connect, Strimzi."""

PLATFORM_SUFFIXES = ("-changelog", "-repartition")
"""Ends of such names: Kafka Streams."""

Place = tuple[str, int]
"""Topic and partition number."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A set of internal topics that one relay group serves.

    Args:
        name: Lower-case letters, digits, `_` and `-`, at most 100 characters.
        tables_only: Whether it has no half mode, and so one topic only: for the progress of its message tables.
    """

    name: str = DEFAULT_CHANNEL
    tables_only: bool = False

    def __post_init__(self) -> None:
        if not _CHANNEL.fullmatch(self.name):
            raise ProtocolError(
                f"channel name {self.name!r} is not allowed: use lower-case letters, digits, '_' and '-', "
                "at most 100 characters, beginning with a letter or digit"
            )

    @property
    def half_topic(self) -> str:
        """Half messages (RocketMQ: RMQ_SYS_TRANS_HALF_TOPIC)."""
        return f"{self.name}.half"

    @property
    def op_topic(self) -> str:
        """Op markers of producers and listeners (RocketMQ: RMQ_SYS_TRANS_OP_HALF_TOPIC)."""
        return f"{self.name}.op"

    @property
    def verdict_topic(self) -> str:
        """Op markers of checker and operators, who overrule the others (R65); no application may write it."""
        return f"{self.name}.verdict"

    @property
    def check_topic(self) -> str:
        """Check requests (RocketMQ: the request CHECK_TRANSACTION_STATE)."""
        return f"{self.name}.check"

    @property
    def discard_topic(self) -> str:
        """Transactions that left the flow (RocketMQ: TRANS_CHECK_MAX_TIME_TOPIC)."""
        return f"{self.name}.discard"

    @property
    def progress_topic(self) -> str:
        """The topic of a channel of message tables only, for which their offsets are committed; it has no records."""
        return f"{self.name}.progress"

    @property
    def progress(self) -> Place:
        """Topic and partition for which the offset of a table source is committed, in a group of its own."""
        return self.progress_topic if self.tables_only else self.half_topic, 0

    @property
    def topics(self) -> tuple[str, ...]:
        """All internal topics, in the order in which partitions are added (R29: half last)."""
        if self.tables_only:
            return (self.progress_topic,)
        return (self.verdict_topic, self.op_topic, self.discard_topic, self.check_topic, self.half_topic)

    @property
    def relay_group(self) -> str:
        return f"{self.name}-relay"

    @property
    def checker_group(self) -> str:
        return f"{self.name}-checker"

    def listener_group(self, service: str) -> str:
        """Consumer group of the instances of a service that answer checks.

        The dot, which no channel's name has, keeps it apart from the groups of every other channel.
        """
        return f"{self.name}-listeners.{service}"

    def transactional_id(self, partition: int) -> str:
        """`transactional.id` of the owner of a half partition: taking over fences the former owner."""
        return f"{self.name}-relay-{partition}"

    def table_group(self, source: str) -> str:
        """Consumer group that holds the progress of a table source, and `transactional.id` of the source's owner.

        The dot keeps it apart from those of every other channel.
        """
        return f"{self.name}-table.{source}"


def check_service(service: str) -> str:
    """Return a service's name if it is allowed.

    Raises:
        ProtocolError: It is empty, longer than 200 characters, or has characters beyond letters, digits, `.`, `_`, `-`.
    """
    if not _SERVICE.fullmatch(service):
        raise ProtocolError(f"service {service!r} is not allowed: use 1 to 200 letters, digits, '.', '_' and '-'")
    return service


def is_topic_name(topic: str) -> bool:
    return bool(_TOPIC.fullmatch(topic)) and topic not in {".", ".."}


def is_kafka_topic(topic: str) -> bool:
    return topic.startswith("__")


def is_platform_topic(topic: str) -> bool:
    """Return whether a topic is named as other platforms name those that hold their own state (R63)."""
    return topic.startswith(PLATFORM_PREFIXES) or topic.endswith(PLATFORM_SUFFIXES)


@lru_cache(maxsize=4_096)
def is_internal_topic(topic: str, channel: Channel) -> bool:
    """Return whether a topic belongs to Kafka or to this channel, and so can never be a message's target."""
    return is_kafka_topic(topic) or topic in (*channel.topics, channel.progress_topic)


def sibling_topic(topic: str) -> str | None:
    """Return another topic of the channel to which a topic belongs by its name; None if no channel can have that name.

    The topic is internal if the sibling exists: a channel has all its topics, and `orders.check` without `orders.half`
    is a topic like any other.
    """
    for suffix in _SUFFIXES:
        name = topic.removesuffix(suffix)
        if name != topic and _CHANNEL.fullmatch(name):
            channel = Channel(name)
            return channel.op_topic if topic == channel.half_topic else channel.half_topic
    return None
