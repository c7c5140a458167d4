"""The replay ledger: what replays are to write and have written, in a compacted topic of the channel.

A lane's progress is written in the Kafka transaction that writes its records, so both are there or neither. Committed
offsets of a group would do the same, but Kafka deletes those of a group without members after a week, and takes none
for a topic that is gone; a replay must be known as long as it may be run again.

The ledger is read to its high watermark, and that waits for what is open below it: what a reader of committed records
sees ends where the first transaction is open, and the own progress may be behind that of another replay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox._kafka.admin import REQUEST_TIMEOUT, admin_client, answer, describe_topics, end_offset
from outbox._kafka.range_reader import Span, SpanReader
from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.names import Channel
from spark_jobs.replaying.kafka_transaction import TIMEOUT_MS
from spark_jobs.replaying.plan import Lane, LaneProgress, Plan

PARTITION = 0
"""The ledger has one: a few records for each lane are all there is."""

_PATIENCE_SECONDS = TIMEOUT_MS / 1000 + 30
"""How long transactions that are open in the ledger are waited for; Kafka ends them when their time is over."""

_LOOK_SECONDS = 0.02
_PLAN = "plan"


def plan_key(replay_id: str) -> bytes:
    return f"{replay_id}/{_PLAN}".encode()


def lane_key(replay_id: str, lane: Lane) -> bytes:
    """Key of the progress of a lane; a topic's name has no slash, so none is a plan's."""
    return f"{replay_id}/{lane}".encode()


def make_ledger(kafka: Mapping[str, str], channel: Channel, replication: int) -> None:
    """Make the ledger's topic, if it is not there.

    Args:
        replication: Its replicas: as many as the topics have that are written to.
    """
    admin, name = admin_client(kafka), channel.replay_ledger_topic
    if describe_topics(admin, [name]):
        return
    config = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
    new = NewTopic(name, num_partitions=1, replication_factor=replication, config=config)
    for future in admin.create_topics([new], request_timeout=REQUEST_TIMEOUT).values():
        answer(future, f"creating topic {name}", absent=KafkaError.TOPIC_ALREADY_EXISTS)
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while not describe_topics(admin, [name]):  # known to every broker a moment after its creation was acknowledged
        if time.monotonic() > deadline:
            raise KafkaUnreachable(f"topic {name} was created, and is not there after {REQUEST_TIMEOUT:.0f} s")
        time.sleep(_LOOK_SECONDS)


@dataclass(slots=True)
class Entries:
    """The ledger's entries of one replay.

    Args:
        plan: None: it was not begun.
        progress: By lane; a lane of which nothing is written is missing.
    """

    plan: Plan | None = None
    progress: dict[Lane, LaneProgress] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(lane.rows for lane in self.progress.values())


class Ledger:
    """Reads the ledger for one replay; a context manager."""

    def __init__(self, kafka: Mapping[str, str], channel: Channel, replay_id: str) -> None:
        self._admin = admin_client(kafka)
        self._reader = SpanReader(kafka, channel.replay_group(replay_id))
        self._topic = channel.replay_ledger_topic
        self._id = replay_id
        self._next = 0
        self._entries = Entries()

    @property
    def seen(self) -> Entries:
        return self._entries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._reader.__exit__(kind, error, traceback)

    def read(self) -> Entries:
        """All that was committed before this call."""
        if self._reader.partitions(self._topic):
            self._take(self.wait_until_decided(self._topic, PARTITION))
        return self._entries

    def glance(self) -> None:
        """Read what a reader of committed records sees at this moment: for people who wait."""
        self._take(self._reader.whole(self._topic, PARTITION).stop)

    def wait_until_decided(self, topic: str, partition: int) -> int:
        """Wait until readers of committed records see all that is in a partition now; its end.

        Where a broker has lost the end of an aborted transaction (KAFKA-20734), the next commit of the same producer
        would show its records. They are below the end, and what readers see stops before them.
        """
        end = self._end(topic, partition)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._end(topic, partition, stable=True) < end:
            if time.monotonic() > deadline:
                raise UnsafeError(
                    f"A Kafka transaction stays open in {topic}, so it is unknown what this replay has "
                    "written. End it with kafka-transactions.sh, and run the replay again."
                )
            time.sleep(_LOOK_SECONDS)
        return end

    def _end(self, topic: str, partition: int, *, stable: bool = False) -> int:
        end = end_offset(self._admin, topic, partition, stable=stable)
        if end is None:
            raise KafkaUnreachable(f"The end of {topic} cannot be read: start Kafka, or look at the network")
        return end

    def _take(self, end: int) -> None:
        for message in self._reader.read([Span(self._topic, PARTITION, self._next, end)]):
            self._note(message)
        self._next = max(self._next, end)

    def _note(self, message: Message) -> None:
        replay_id, _, rest = (message.key() or b"").decode(errors="replace").partition("/")
        value = message.value()
        if replay_id != self._id or value is None:
            return
        topic, _, partition = rest.rpartition("/")
        if rest == _PLAN:
            self._entries.plan = Plan.parse(value)
        elif partition.isdigit():
            self._entries.progress[Lane(topic, int(partition))] = LaneProgress.parse(value)
        else:
            raise ConfigurationError(
                f"Topic {self._topic} holds a record that is no entry of the ledger: {rest[:80]!r}. "
                "Name a topic that only replays write to."
            )
