"""Search real topics for rows or halves that were delivered. What is not read is never called absent."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client, describe_topics, end_offsets
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.range_reader import SpanReader
from outbox._rules.topic_description import TopicDescription
from outbox.operator.reading.topic_walk import Walk
from outbox.operator.state.coverage import Coverage, Gap
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER, Channel, is_topic_name

SKEW_MS = 600_000  # how far the clocks of applications, brokers and databases may be apart
OPEN_SECONDS = 5.0  # time for open Kafka transactions on a real topic to end


@dataclass
class DeliveredSearch(Coverage):
    """Searches real topics for what some owners delivered: a table source, or half partitions.

    With something unread, what was not found may have been delivered.
    """

    kafka: Mapping[str, str]
    channel: Channel
    origins: Collection[str]  # what origin headers begin with: name of the source, or half partitions; none: any
    most: int  # records that are read of a topic at most
    now_ms: int
    transactions: dict[int, set[str]] = field(default_factory=dict)  # ids of what was found, by row id or half offset

    def search(self, since_ms: Mapping[str, int]) -> Self:
        """Find what was delivered, by what `read_committed` readers see from a time on, by topic, in ms."""
        names = [name for name in since_ms if is_topic_name(name)]
        admin = admin_client(self.kafka)
        described = describe_topics(admin, names) if names else {}
        with SpanReader(self.kafka, self.channel.relay_group) as reader:
            walk = Walk(reader, self, self.most, "see --records")
            for name in names:
                topic, since = described.get(name), since_ms[name] - SKEW_MS
                if gap := unprovable(name, topic):
                    self.unread.append(gap)
                if topic is None:
                    continue
                self._await_ends(admin, topic)
                spans = reader.since(name, range(topic.partitions), since)
                for span in spans:
                    start = reader.whole(name, span.partition).start
                    if may_be_removed(topic, start, span.start, since, self.now_ms):
                        self.miss(f"{name}/{span.partition}", "retention may have removed records of its time", name)
                walk.read(spans, self._take)
        return self

    def _await_ends(self, admin: AdminClient, topic: TopicDescription) -> None:
        """Wait until no Kafka transaction is open on a topic: committed records behind one are not visible."""
        partitions, deadline = {topic.name: topic.partitions}, time.monotonic() + OPEN_SECONDS
        high = end_offsets(admin, partitions).get(topic.name)
        while True:
            stable = end_offsets(admin, partitions, stable=True).get(topic.name)
            if high and stable and all(one >= other for one, other in zip(stable, high, strict=True)):
                return
            if time.monotonic() > deadline:
                self.miss(topic.name, "a Kafka transaction is open on it, or a partition does not answer", topic.name)
                return
            time.sleep(0.2)

    def _take(self, message: Message) -> None:
        headers = dict(headers_of(message))
        owner, _, place = (headers.get(ORIGIN_HEADER) or b"").rpartition(b"/")
        if (owner.decode(errors="replace") in self.origins or not self.origins) and place.isdigit():
            transaction_id, _, _ = (headers.get(MESSAGE_ID_HEADER) or b"").decode(errors="replace").partition("/")
            self.transactions.setdefault(int(place), set()).add(transaction_id)


def unprovable(name: str, topic: TopicDescription | None) -> Gap | None:
    """Return why a topic cannot prove that a message was not delivered; None: it can."""
    if topic is None:
        return Gap(name, "the topic does not exist, or may not be described; it may have had messages", name)
    if topic.key_required:
        return Gap(name, "the topic is compacted: a later message of a key removes the earlier one", name)
    return None


def may_be_removed(topic: TopicDescription, start: int, first: int, since_ms: int, now_ms: int) -> bool:
    """Return whether a partition may have lost records as new as a time, of which `first` is the first one left.

    A partition that still begins with an older record has lost none of them, if timestamps ascend. Rows that waited
    have older ones; so retention must not have reached that time, either.
    """
    retention = int(topic.settings.get("retention.ms", -1))
    is_over = 0 <= retention < now_ms - since_ms
    return start > 0 and (first <= start or is_over or int(topic.settings.get("retention.bytes", -1)) >= 0)
