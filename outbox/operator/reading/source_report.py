"""The state of one table source for operators: rows, owner, progress, and why rows wait. Nothing is written."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import admin_client, describe_topics
from outbox._kafka.channel import as_created
from outbox._kafka.groups import committed_checkpoints
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_contract import breaches
from outbox._rules.source_progress import Committed, Progress, contradiction
from outbox._rules.topic_description import TopicDescription
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.reading.table_view import Delivered, TableView, opened_table, refusal_to_write
from outbox.operator.settings import OperatorSettings
from outbox.operator.state import waiting_rows
from outbox.operator.state.channel_state import Condition, SourceState
from outbox.operator.state.repairs import NOT_BEGUN
from outbox.operator.state.waiting_rows import SourceWaits, TopicRows, TopicState, Waits
from outbox.protocol.names import Channel, is_topic_name

ROWS = 500_000  # rows that are counted; more are reported as more
ROWS_IN_ORDER = 100_000  # rows whose order is looked at: a relay lets no more wait for topics
LOOKS = 5  # looks at progress that moves meanwhile; then an owner is at work, and the numbers fit


def report_tables(settings: OperatorSettings, *, is_unreachable: bool = False) -> list[SourceState]:
    reporter = SourceReporter(settings.client_properties(), settings.channel_names(), is_unreachable=is_unreachable)
    return [reporter.report(name, table_of(one), one.connection_string()) for name, one in settings.tables.items()]


def table_of(settings: TableSettings) -> Delivered:
    names = settings.table_names()
    return ForeignSource(names, settings.foreign_name()) if settings.is_foreign else MessageTable(names)


@dataclass
class SourceReporter:
    """Looks at table sources; Kafka is not asked again once it did not answer."""

    kafka: Mapping[str, str]
    channel: Channel
    is_unreachable: bool = False  # whether Kafka did not answer
    writes: bool = False  # whether this client has a relay's rights, so that a right to write that it lacks is a reason
    _admin: AdminClient | None = None

    def report(self, source: str, table: Delivered, dsn: str) -> SourceState:
        found, broken = SourceState(source, table.full_name, isinstance(table, ForeignSource)), ""
        try:
            with opened_table(source, table, dsn) as view:
                broken = "; ".join(map(str, breaches(view.connection, table.places)))
                self._look(found, view)
                if broken:  # a relay halts it (R75)
                    found.condition, found.why = Condition.HALTED, broken
        except ConfigurationError as error:
            found.condition, found.why = Condition.UNREACHABLE, broken or str(error)
        if found.condition is Condition.NO_OWNER and not found.why:
            if refusal := refusal_to_write(dsn):
                found.condition, found.why = Condition.READ_ONLY, f"the database takes no writes of a relay: {refusal}"
            elif self.is_unreachable:
                found.condition = Condition.NO_KAFKA
        return found

    def _look(self, found: SourceState, view: TableView) -> None:
        now = view.now_ms()
        found.discarded = view.discarded()
        progress = self._compare(found, view)
        if found.foreign:
            return
        topics = view.by_topic(ROWS)
        found.rows = sum(one.rows for one in topics)
        found.more_rows = found.rows >= ROWS
        found.age_ms = max((waiting_rows.age_of(one.started_us, now) for one in topics), default=None)
        found.waiting = self._reasons(found, view, topics, now)
        found.later, found.overdue = view.later(ROWS)
        found.in_delivery = len(progress.ids) - progress.missing if progress else 0

    def _compare(self, found: SourceState, view: TableView) -> Progress | None:
        """Find out whether the source is served, and whether database and Kafka fit; return the database's numbers."""
        holder, progress, committed, contradicts = view.owner(), None, None, ""
        found.condition = Condition.NO_OWNER
        if holder and not holder.why_not():
            found.condition, found.owner_pid, found.owner_address = Condition.SERVED, holder.pid, holder.address
        try:
            for _ in range(LOOKS):
                name, progress = before = view.progress() or (found.source, None)
                if name != found.source:
                    why = f"the table is delivered as source {name!r}: name it so in the setting tables"
                    found.not_read.append(why)
                    break
                self._ask_kafka()
                committed = read_committed(self.kafka, self.channel, found.source)
                found.kafka_read = True
                if before == (view.progress() or (found.source, None)):
                    contradicts = contradiction(progress or NOT_BEGUN, committed)
                    break
        except ConfigurationError as error:
            self.is_unreachable |= isinstance(error, KafkaUnreachable)
            found.not_read.append(f"its progress in Kafka: {error}")
        if progress:
            found.batch, found.delivered = progress.batch, progress.delivered
        found.kafka_batch = committed.batch if committed else None
        if contradicts := contradicts or view.halted():
            found.condition, found.why = Condition.HALTED, contradicts
        elif holder and not found.owner_pid:
            found.why = holder.why_not()
        return progress

    def _ask_kafka(self) -> AdminClient:
        if self.is_unreachable:
            raise KafkaUnreachable("Kafka does not answer")
        if self._admin is None:
            admin = admin_client(self.kafka)
            self.channel, self._admin = as_created(admin, self.channel), admin
        return self._admin

    def _reasons(self, found: SourceState, view: TableView, topics: Sequence[TopicRows], now: int) -> list[SourceWaits]:
        if not topics:
            return []
        try:
            states = self._states({one.topic for one in topics})
        except (ConfigurationError, KafkaException) as error:
            found.not_read.append(f"its real topics: {error}")
            return waiting_rows.all_of(Waits.NOT_KNOWN, topics, now)
        if not waiting_rows.is_any_closed(topics, states):
            return waiting_rows.all_of(Waits.NEXT, topics, now)
        rows = view.rows(ROWS_IN_ORDER)
        if more := {row.topic for row in rows} - states.keys():
            states |= self._states(more)
        return waiting_rows.reasons(rows, states, now)

    def _states(self, names: Collection[str]) -> dict[str, TopicState]:
        return topic_states(self._ask_kafka(), names, writes=self.writes)


def topic_states(admin: AdminClient, names: Collection[str], *, writes: bool) -> dict[str, TopicState]:
    asked = sorted(name for name in names if is_topic_name(name))
    described = describe_topics(admin, asked, writing=True) if asked else {}
    return {name: topic_state(name, described.get(name), writes=writes) for name in names}


def refusing(admin: AdminClient, names: Collection[str], *, writes: bool = False) -> list[TopicState]:
    """Return which real topics take no messages, and why; for `writes` see `SourceReporter`."""
    states = topic_states(admin, sorted(names), writes=writes).values()
    return [one for one in states if one.reason is not Waits.NEXT]


def read_committed(kafka: Mapping[str, str], channel: Channel, name: str, *, stable: bool = False) -> Committed | None:
    """Return the progress of a source in Kafka; if `stable`, an open Kafka transaction of the owner ends first."""
    place = channel.progress
    found = committed_checkpoints(kafka, channel.table_group(name), [place], stable=stable).get(place)
    return None if found is None else Committed.parse(found.offset, found.metadata)


def topic_state(name: str, topic: TopicDescription | None, *, writes: bool = False) -> TopicState:
    if topic is None:
        return TopicState(name, 0, Waits.TOPIC_MISSING, f"topic {name} does not exist")
    if topic.lacks and (writes or not topic.lacks.startswith("WRITE ")):
        return TopicState(name, 0, Waits.NOT_AUTHORIZED, f"this client lacks {topic.lacks}")
    if not all(topic.writable):
        few = "has a partition without a leader, or with fewer in-sync replicas than min.insync.replicas"
        return TopicState(name, topic.partitions, Waits.TOPIC_UNAVAILABLE, f"topic {name} {few}")
    return TopicState(name, topic.partitions)
