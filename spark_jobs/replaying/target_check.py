"""What would go wrong, seen before anything is written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from outbox._rules.topic_description import TopicDescription
from outbox.protocol.fields import MAX_INT64
from outbox.protocol.names import Channel, is_internal_topic, sibling_topic
from spark_jobs.replaying.plan import Part, Target

OVERHEAD_BYTES = 512
"""Bytes that are allowed for the headers of a replay, and for what Kafka puts around a record."""

_BROKERS_TIME = "LogAppendTime"


def internal_topics(topics: Iterable[str], described: Mapping[str, TopicDescription], channel: Channel) -> list[str]:
    """Return those of some topics that belong to Kafka or a channel, or perhaps do: their records are no messages."""
    others = {name for name, topic in described.items() if topic.of_channel or _is_sibling_hidden(topic)}
    return sorted(name for name in set(topics) if name in others or is_internal_topic(name, channel))


def _is_sibling_hidden(topic: TopicDescription) -> bool:
    sibling = sibling_topic(topic.name)
    return sibling is not None and topic.lacks.endswith(f" {sibling}")


def closed_topics(targets: Mapping[str, TopicDescription]) -> list[str]:
    """Return the rights that this client lacks to write to some of the topics."""
    return [topic.lacks for _, topic in sorted(targets.items()) if topic.lacks]


def problems(parts: Iterable[Part], targets: Mapping[str, TopicDescription], now: int) -> Iterator[str]:
    """Why Kafka would refuse some of it, or keep it otherwise than it was.

    Args:
        now: ms since 1970.
    """
    for part in parts:
        target = targets[part.lane.topic]
        if why := next(_problems(part, target, now), ""):
            yield (
                f"Records of {part.topic}/{part.partition} cannot go to topic {target.name}: {why}. "
                "Leave them out with where, or name another target."
            )


def _problems(part: Part, target: TopicDescription, now: int) -> Iterator[str]:
    settings = target.settings
    if part.lane.partition >= target.partitions:
        yield f"it has {target.partitions} partitions, and no partition {part.lane.partition}"
    if part.largest + OVERHEAD_BYTES > target.max_message_bytes:
        yield f"the largest has {part.largest} bytes, and the topic takes {target.max_message_bytes} with all around"
    if part.keyless and "compact" in settings.get("cleanup.policy", ""):
        yield f"{part.keyless} have no key, and the topic is compacted"
    if settings.get("message.timestamp.type") != _BROKERS_TIME:
        yield from _time_problems(part, settings, now)


def _time_problems(part: Part, settings: Mapping[str, str], now: int) -> Iterator[str]:
    if part.oldest <= 0:
        yield "some have no timestamp, or one before 1970, which librdkafka cannot write"
    before = int(settings.get("message.timestamp.before.max.ms", MAX_INT64))
    after = int(settings.get("message.timestamp.after.max.ms", MAX_INT64))
    if now - part.oldest > before:
        yield f"some have a timestamp {now - part.oldest} ms ago, and the topic takes {before} ms at most"
    if part.newest - now > after:
        yield f"some have a timestamp {part.newest - now} ms ahead, and the topic takes {after} ms at most"


def warnings(parts: Iterable[Part], targets: Mapping[str, TopicDescription], now: int) -> Iterator[str]:
    """Yield what would come as a surprise, by topic."""
    oldest: dict[str, int] = {}
    for part in parts:
        oldest[part.lane.topic] = min(part.oldest, oldest.get(part.lane.topic, part.oldest))
    for topic, time in sorted(oldest.items()):
        settings = targets[topic].settings
        retention = int(settings.get("retention.ms", -1)) if "delete" in settings.get("cleanup.policy", "") else -1
        if settings.get("message.timestamp.type") != _BROKERS_TIME and 0 <= retention < now - time:
            yield (
                f"topic {topic} keeps records for {retention} ms, and some that it is to get are older: Kafka may soon "
                "delete them"
            )


def changed(planned: Mapping[str, Target], targets: Mapping[str, TopicDescription]) -> list[str]:
    """Target topics that are others than when the replay was begun, or gone."""
    return sorted(name for name, target in planned.items() if name not in targets or targets[name].id != target.id)
