"""The contract of a channel's topics (R23): without it messages are lost, duplicated or out of order. Pure.

It is looked at before anything is read, and from time to time: a topic may be altered while a service runs.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outbox._rules.topic_description import TopicDescription
from outbox.protocol.names import Channel

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
RETENTION_MS = 14 * DAY_MS
"""Retention of half, op and verdict topic at creation."""
PROGRESS_PARTITIONS = 2
"""Of a channel of message tables only: one for the progress, one for notes on a hanging transaction."""
ENVELOPE_BYTES = 4_194_304
"""What a record with an envelope may have: a half of Kafka's default size, in base64, with room to spare (R23)."""
KAFKAS_OWN = ("__consumer_offsets", "__transaction_state")
"""They hold the checkpoints, and the commits of the relay's Kafka transactions."""

_COMMON = {"message.timestamp.type": "LogAppendTime"}
_DELETE = {
    **_COMMON,
    "cleanup.policy": "delete",
    "retention.ms": str(RETENTION_MS),
    "compression.type": "uncompressed",  # else a batch of a few kB may unpack to any size in relays and checkers (R52)
}
_COMPACT = {**_COMMON, "cleanup.policy": "compact"}
_ENVELOPE = {"max.message.bytes": str(ENVELOPE_BYTES)}


class Rule(enum.StrEnum):
    """What a topic's contract is about."""

    MISSING = "missing"
    RECREATED = "recreated"
    PARTITIONS = "partitions"
    TIMESTAMP_TYPE = "timestamp_type"
    CLEANUP_POLICY = "cleanup_policy"
    MAX_MESSAGE_BYTES = "max_message_bytes"
    RETENTION = "retention"
    REPLICATION = "replication"
    MIN_INSYNC_REPLICAS = "min_insync_replicas"
    UNCLEAN_LEADER_ELECTION = "unclean_leader_election"
    OFFSETS_RETENTION = "offsets_retention"
    COMPRESSION = "compression"


STOPS = frozenset({Rule.MISSING, Rule.RECREATED, Rule.PARTITIONS, Rule.TIMESTAMP_TYPE, Rule.CLEANUP_POLICY})
"""Rules that stop a running service when they are broken: what it would read next could not be trusted.

With the others it goes on, not ready: to stop would only let more time pass over what is at risk.
"""

WARNS = frozenset({Rule.OFFSETS_RETENTION, Rule.COMPRESSION})
"""Rules that are only reported: no message is at risk as long as a relay runs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule."""

    rule: Rule
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.fix}"


@dataclass(frozen=True, slots=True)
class Contract:
    """What a site asks of its cluster, beyond what the protocol needs.

    Args:
        in_sync: Least `min.insync.replicas`.
        retention_ms: Least retention of half, op and verdict topic; what is undecided must never be that old.
        offsets_retention: Whether brokers must keep committed offsets as long as the half topic keeps its halves.
    """

    replicas: int = 3
    in_sync: int = 2
    retention_ms: int = 4 * DAY_MS
    offsets_retention: bool = True


class ProfileName(enum.StrEnum):
    """What a site expects of its cluster."""

    PRODUCTION = "production"
    DEVELOPMENT = "development"


def contract_of(profile: str) -> Contract:
    """Return the contract of a profile: in `development` topics need one replica, and may lose messages."""
    return Contract() if profile == ProfileName.PRODUCTION else Contract(replicas=1, in_sync=1, offsets_retention=False)


def topic_settings(channel: Channel) -> dict[str, dict[str, str]]:
    """Return the settings that the channel's topics get at creation."""
    if channel.tables_only:
        return {channel.progress_topic: {}}
    return {
        channel.half_topic: _DELETE,
        channel.op_topic: _DELETE,
        channel.verdict_topic: _DELETE,
        channel.check_topic: {**_DELETE, **_ENVELOPE},
        channel.discard_topic: {**_COMPACT, **_ENVELOPE},
    }


def channel_problems(channel: Channel, topics: Mapping[str, TopicDescription]) -> list[Problem]:
    """Return what the protocol cannot work with."""
    missing = [name for name in channel.topics if name not in topics]
    if missing:
        names = ", ".join(missing)
        what = f"topic {names} of channel {channel.name!r} does not exist"
        fix = f"run `outbox channel create --channel {channel.name}`, with --tables-only if it needs no half mode"
        return [Problem(Rule.MISSING, what, fix)]
    if channel.tables_only:
        found = topics[channel.progress_topic].partitions
        what = f"topic {channel.progress_topic} has {found} partition"
        return [] if found > 1 else [Problem(Rule.PARTITIONS, what, f"give it {PROGRESS_PARTITIONS}")]
    return [*_partitions(channel, topics), *_settings(channel, topics), *_sizes(channel, topics)]


def _partitions(channel: Channel, topics: Mapping[str, TopicDescription]) -> Iterator[Problem]:
    half = topics[channel.half_topic]
    for name in (channel.op_topic, channel.verdict_topic, channel.discard_topic):
        if topics[name].partitions != half.partitions:
            what = f"topic {name} has {topics[name].partitions} partitions and {half.name} has {half.partitions}"
            yield Problem(Rule.PARTITIONS, what, "they must have the same number")


def _settings(channel: Channel, topics: Mapping[str, TopicDescription]) -> Iterator[Problem]:
    rules = {"cleanup.policy": Rule.CLEANUP_POLICY, "message.timestamp.type": Rule.TIMESTAMP_TYPE}
    for name, settings in topic_settings(channel).items():
        for setting, rule in rules.items():
            found = topics[name].settings.get(setting)
            if found != settings[setting]:
                yield Problem(rule, f"topic {name} has {setting}={found}", f"set it to {settings[setting]}")


def _sizes(channel: Channel, topics: Mapping[str, TopicDescription]) -> Iterator[Problem]:
    """Yield a half that fits into the half topic must fit into an envelope."""
    least = 2 * topics[channel.half_topic].max_message_bytes
    for name in (channel.check_topic, channel.discard_topic):
        found = topics[name].max_message_bytes
        if found < least:
            what = f"topic {name} has max.message.bytes={found}"
            yield Problem(Rule.MAX_MESSAGE_BYTES, what, f"set it to {least} or more")


def contract_problems(
    channel: Channel, topics: Mapping[str, TopicDescription], contract: Contract
) -> Iterator[Problem]:
    """Yield what the site's contract forbids."""
    for name in (channel.half_topic, channel.op_topic, channel.verdict_topic):
        if name in topics:
            yield from _retention(topics[name], contract)
    for name in (*channel.topics, *KAFKAS_OWN):
        if name in topics and name != channel.check_topic:
            yield from _durability(topics[name], contract)


def _retention(topic: TopicDescription, contract: Contract) -> Iterator[Problem]:
    time, size = int(topic.settings["retention.ms"]), int(topic.settings["retention.bytes"])
    if 0 <= time < contract.retention_ms:
        what = f"topic {topic.name} has retention.ms={time}, so that Kafka may delete what is undecided"
        yield Problem(Rule.RETENTION, what, f"set it to {contract.retention_ms} or more ({RETENTION_MS} at creation)")
    if size >= 0:
        what = f"topic {topic.name} has retention.bytes={size}, so that Kafka may delete what is undecided"
        yield Problem(Rule.RETENTION, what, "set it to -1")


def _durability(topic: TopicDescription, contract: Contract) -> Iterator[Problem]:
    if topic.replication < contract.replicas:
        yield Problem(
            Rule.REPLICATION,
            f"topic {topic.name} has replication {topic.replication}, so that lost disks lose committed messages",
            f"give it {contract.replicas} replicas, or set OUTBOX_PROFILE=development where messages may be lost",
        )
    in_sync = int(topic.settings["min.insync.replicas"])
    if in_sync < contract.in_sync:
        yield Problem(
            Rule.MIN_INSYNC_REPLICAS,
            f"topic {topic.name} has min.insync.replicas={in_sync}, so that one lost disk may lose committed messages",
            f"set it to {contract.in_sync}",
        )
    if topic.settings["unclean.leader.election.enable"] != "false":
        what = f"topic {topic.name} has unclean.leader.election.enable=true, so that committed messages may vanish"
        yield Problem(Rule.UNCLEAN_LEADER_ELECTION, what, "set it to false")


def compression_problems(channel: Channel, topics: Mapping[str, TopicDescription]) -> Iterator[Problem]:
    """Yield the topics that store batches compressed, so that what a batch unpacks to has no limit (R52).

    A broker that unpacks them itself refuses what is larger than `max.message.bytes` then.
    """
    names = (channel.half_topic, channel.op_topic, channel.verdict_topic, channel.check_topic)
    for name in filter(topics.__contains__, names):
        found = topics[name].settings.get("compression.type", "producer")
        if found != "uncompressed":
            what = f"topic {name} has compression.type={found}, so that a small batch may unpack to any size in a relay"
            yield Problem(Rule.COMPRESSION, what, "set it to uncompressed")


def offsets_problem(half: TopicDescription, offsets_minutes: int) -> Problem | None:
    """Return what is wrong if Kafka deletes a group's offsets before the half topic deletes its halves."""
    retention_ms = int(half.settings["retention.ms"])
    if 0 <= retention_ms <= offsets_minutes * MINUTE_MS:
        return None
    what = (
        f"the brokers have offsets.retention.minutes={offsets_minutes}, and topic {half.name} has "
        f"retention.ms={retention_ms}, so that a relay that is down for long loses its checkpoints first"
    )
    wanted = (
        f"set offsets.retention.minutes={-(-retention_ms // MINUTE_MS)} on the brokers, or "
        if retention_ms >= 0
        else ""
    )
    return Problem(Rule.OFFSETS_RETENTION, what, f"{wanted}set retention.ms={offsets_minutes * MINUTE_MS} on the topic")


def changes(
    channel: Channel, known: Mapping[str, TopicDescription], topics: Mapping[str, TopicDescription]
) -> Iterator[Problem]:
    """Yield identity changes of topics since start: another id, or another number of partitions.

    The check topic may grow: which partition a check request takes does not matter.
    """
    for name, before in known.items():
        now = topics.get(name)
        if now is None:
            gone = "what it held is gone: see docs/operations/recovery.md before this channel is served again"
            yield Problem(Rule.MISSING, f"topic {name} was deleted", gone)
        elif now.id != before.id:
            yield Problem(
                Rule.RECREATED,
                f"topic {name} was deleted and recreated: its id is {now.id}, and was {before.id}",
                "what it held is gone: see docs/operations/recovery.md before this channel is served again",
            )
        elif now.partitions != before.partitions and name != channel.check_topic:
            yield Problem(
                Rule.PARTITIONS,
                f"topic {name} has grown from {before.partitions} to {now.partitions} partitions",
                "ordering keys move to other partitions: see docs/operations/recovery.md before it is served again",
            )
