"""The state of one table source for operators: rows, owner, progress, and why rows wait. Nothing is written."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client, describe_topics
from outbox._kafka.groups import committed_checkpoints
from outbox._operations.table_connection import refusal_to_write, table_connection
from outbox._operations.table_view import DiscardedRows, Owner, TableView
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import held_by_intruder
from outbox._rules.repairs import NOT_BEGUN
from outbox._rules.source_progress import Committed, Progress, contradiction
from outbox._rules.topic_description import TopicDescription
from outbox._rules.waiting_rows import (
    DETAILS,
    TopicRows,
    TopicState,
    WaitingRows,
    Waits,
    all_next,
    is_any_closed,
    reasons,
)
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.names import Channel, is_topic_name

ROWS = 500_000
"""Rows that are counted; more are reported as more."""

ROWS_IN_ORDER = 100_000
"""Rows whose order is looked at: a relay lets no more wait for topics."""

LOOKS = 5
"""Looks at progress that moves meanwhile; then an owner is at work, and the numbers fit."""


class Condition(enum.StrEnum):
    """Whether a table source is served."""

    SERVED = "served"
    HALTED = "halted"
    NO_OWNER = "no owner"
    NO_KAFKA = "no Kafka"
    READ_ONLY = "read-only"
    UNREACHABLE = "unreachable"


@dataclass
class SourceReport:
    """What was seen of one table source; nothing of it is a guess.

    Args:
        is_counted: Whether its rows are counted; those of a foreign table are not.
        why: Why it is not, or what could not be read; empty if all is fine.
        now_ms: The database's time, ms since 1970; 0: it does not answer.
        progress: The database's numbers; None: it was never served.
        committed: Kafka's numbers; None: it has none, or could not be read.
        is_compared: Whether Kafka's numbers were read.
        in_delivery: Rows of the newest batch that are in the table.
    """

    source: str
    table: str
    is_counted: bool = True
    condition: Condition = Condition.UNREACHABLE
    why: str = ""
    now_ms: int = 0
    owner: Owner | None = None
    progress: Progress | None = None
    committed: Committed | None = None
    is_compared: bool = False
    in_delivery: int = 0
    topics: Sequence[TopicRows] = ()
    waiting: Sequence[WaitingRows] = ()
    discarded: Sequence[DiscardedRows] = ()
    problems: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Return how many rows the table has, at most `ROWS`."""
        return sum(one.rows for one in self.topics)

    @property
    def oldest_ms(self) -> int | None:
        """Return the age of the oldest row, ms; None: there is none."""
        if not self.topics:
            return None
        return max(self.now_ms - min(one.started_us for one in self.topics) // 1_000, 0)


class SourceReporter:
    """Looks at table sources.

    Args:
        is_unreachable: Whether Kafka did not answer. It is not asked again then, also after a report that found so.
    """

    def __init__(self, kafka: Mapping[str, str], channel: Channel, *, is_unreachable: bool = False) -> None:
        self._kafka = kafka
        self._channel = channel
        self.is_unreachable = is_unreachable
        self._admin: AdminClient | None = None

    def report(self, source: str, table: MessageTable | ForeignSource, dsn: str) -> SourceReport:
        """Return the state of a source; what does not answer is part of it.

        Args:
            table: Its message table; or its foreign table, of which the progress and the discarded rows are read.
        """
        found = SourceReport(source, table.full_name, isinstance(table, MessageTable))
        try:
            with table_connection(source, table.names, dsn) as connection:
                self._look(found, TableView(table, connection))
        except ConfigurationError as error:
            found.condition, found.why = Condition.UNREACHABLE, str(error)
        if found.condition is Condition.NO_OWNER and not found.why:
            self._explain(found, dsn)
        return found

    def _explain(self, found: SourceReport, dsn: str) -> None:
        """Find out what keeps every relay from a source without an owner; nothing: none runs that names it."""
        if refusal := refusal_to_write(dsn):
            found.condition, found.why = Condition.READ_ONLY, f"the database takes no writes of a relay: {refusal}"
        elif self.is_unreachable:
            found.condition = Condition.NO_KAFKA

    def _look(self, found: SourceReport, view: TableView) -> None:
        found.now_ms = view.now_ms()
        found.discarded = view.discarded()
        self._compare(found, view)
        if not found.is_counted:
            return
        found.topics = view.by_topic(ROWS)
        found.waiting = self._reasons(found, view)
        found.in_delivery = len(found.progress.ids) - found.progress.missing if found.progress else 0

    def _compare(self, found: SourceReport, view: TableView) -> None:
        """Find out whether the source is served, and whether database and Kafka fit."""
        holder = view.owner()
        found.owner = holder if holder and holder.may_deliver else None
        found.condition = Condition.SERVED if found.owner else Condition.NO_OWNER
        try:
            found.why = self._contradiction(found, view)
        except ConfigurationError as error:
            self.is_unreachable |= isinstance(error, KafkaUnreachable)
            found.problems.append(f"its progress in Kafka: {error}")
        if found.why:
            found.condition = Condition.HALTED
        elif holder and not found.owner:
            found.why = held_by_intruder(holder.pid, holder.role)

    def _contradiction(self, found: SourceReport, view: TableView) -> str:
        """Return why the source halts; empty if the numbers fit, or move while they are read."""
        for _ in range(LOOKS):
            before = view.progress()
            name, found.progress = before or (found.source, None)
            if name != found.source:
                found.problems.append(f"the table is delivered as source {name!r}: name it so in the setting tables")
                return ""
            self._ask_kafka()
            found.committed = read_committed(self._kafka, self._channel, found.source)
            found.is_compared = True
            if before == view.progress():
                return contradiction(found.progress or NOT_BEGUN, found.committed)
        return ""

    def _ask_kafka(self) -> None:
        if self.is_unreachable:
            raise KafkaUnreachable("Kafka does not answer")

    def _reasons(self, found: SourceReport, view: TableView) -> Sequence[WaitingRows]:
        if not found.topics:
            return ()
        try:
            states = self._states({one.topic for one in found.topics})
        except (ConfigurationError, KafkaException) as error:
            found.problems.append(f"its real topics: {error}")
            return [
                WaitingRows(one.topic, Waits.NOT_KNOWN, one.rows, one.started_us, DETAILS[Waits.NOT_KNOWN])
                for one in found.topics
            ]
        if not is_any_closed(found.topics, states):
            return all_next(found.topics)
        rows = view.rows(ROWS_IN_ORDER)
        if more := {row.topic for row in rows} - states.keys():
            states |= self._states(more)
        return reasons(rows, states)

    def _states(self, names: Collection[str]) -> dict[str, TopicState]:
        self._ask_kafka()
        if self._admin is None:
            self._admin = admin_client(self._kafka)
        asked = sorted(name for name in names if is_topic_name(name))
        described = describe_topics(self._admin, asked, writing=True) if asked else {}
        return {name: topic_state(name, described.get(name)) for name in names}


def read_committed(
    kafka: Mapping[str, str], channel: Channel, source: str, *, stable: bool = False
) -> Committed | None:
    """Return the progress of a table source in Kafka; None: there is none.

    Args:
        kafka: librdkafka properties, with the right DESCRIBE on the group.
        stable: Whether an open Kafka transaction of its owner is waited for.
    """
    place = (channel.half_topic, 0)
    found = committed_checkpoints(kafka, channel.table_group(source), [place], stable=stable).get(place)
    return None if found is None else Committed.parse(found.offset, found.metadata)


def topic_state(name: str, topic: TopicDescription | None) -> TopicState:
    """Return what keeps a real topic from taking messages, as far as this client may see.

    Args:
        topic: As the cluster describes it; None: it does not exist.
    """
    if topic is None:
        return TopicState(0, Waits.TOPIC_MISSING, f"topic {name} does not exist")
    if topic.lacks:
        return TopicState(0, Waits.NOT_AUTHORIZED, f"this client lacks {topic.lacks} on topic {name}")
    if not all(topic.writable):
        few = "has a partition without a leader, or with fewer in-sync replicas than min.insync.replicas"
        return TopicState(topic.partitions, Waits.TOPIC_UNAVAILABLE, f"topic {name} {few}")
    return TopicState(topic.partitions)
