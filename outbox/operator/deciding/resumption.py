"""Resume a table source that halts (R55), or half partitions that were written to without a checkpoint (R84)."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
from confluent_kafka import Message, TopicPartition

from outbox._kafka.admin import admin_client, end_offset
from outbox._kafka.channel import verify_channel
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.groups import commit_missing, missing_offsets
from outbox._kafka.range_reader import Span, SpanReader
from outbox._postgres.ddl import identifier
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import TRY_OWN, Counts
from outbox._postgres.table_contract import breaches
from outbox._rules.source_progress import Committed, Progress, is_foreign
from outbox.errors import KafkaUnreachable, UsageError
from outbox.operator.reading.delivered_search import DeliveredSearch
from outbox.operator.reading.source_report import read_committed
from outbox.operator.reading.table_view import TableView, opened_table
from outbox.operator.state.coverage import Gap
from outbox.operator.state.repairs import NEW, NOT_BEGUN, Repair, StoredHalf, first_checkpoint, repair
from outbox.operator.state.unsettled_transactions import Half
from outbox.protocol.checkpoint import CheckpointError, OpCheckpoint
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import parse_half
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.names import Channel, Place


@dataclass
class ResumedPartition:
    """One half partition without a checkpoint, and of how many of its halves a real topic shows the message."""

    partition: int
    halves: int = 0
    halves_found_delivered: int = 0
    why: str | None = None  # why real topics cannot prove what was delivered of it; None: they can

    def __str__(self) -> str:
        delivered = f"{self.partition}, {self.halves_found_delivered} of {self.halves} halves are delivered"
        return f"{self.partition} cannot be resumed: {self.why}" if self.why else delivered


@dataclass
class ChannelResumption:
    """The half partitions of a channel that have no checkpoint, and were written to."""

    kafka: Mapping[str, str]
    channel: Channel
    most: int  # records that are read of a real topic at most
    trusted: frozenset[str] = frozenset()  # of which the operator declares: what is not there was not delivered

    partitions: Sequence[ResumedPartition] = ()
    gaps: Sequence[Gap] = ()
    is_resumed: bool = False
    _checkpoints: dict[Place, TopicPartition] = field(default_factory=dict)

    def find(self) -> None:
        """Find the half partitions, and what of them is on real topics. Nothing is written."""
        admin = admin_client(self.kafka)
        described = verify_channel(admin, self.channel)
        places = [(described.half.name, number) for number in described.numbers()]
        missing = missing_offsets(self.kafka, self.channel.relay_group, places)
        self.partitions = [ResumedPartition(number) for _, number in sorted(missing)]
        with SpanReader(self.kafka, self.channel.relay_group) as reader:
            spans = {one.partition: reader.whole(described.half.name, one.partition) for one in self.partitions}
            for one in self.partitions:
                one.why = self._refusal(spans[one.partition], end_offset(admin, described.discard.name, one.partition))
            provable = [one for one in self.partitions if not one.why]
            halves, since, now = _read_halves(reader.read(spans[one.partition] for one in provable))
        origins = {str(one.partition) for one in provable}
        searched = DeliveredSearch(self.kafka, self.channel, origins, self.most, now).search(since)
        self.gaps = [gap for gap in searched.unread if gap.topic not in self.trusted]
        delivered = set[str]().union(*searched.transactions.values())
        for one in provable:
            found = halves[one.partition]
            one.halves, one.halves_found_delivered = len(found), sum(half.transaction_id in delivered for half in found)
            half, op = first_checkpoint(found, delivered), OpCheckpoint(0, 0).encode(described.op.id, one.partition)
            try:
                text = half.encode(described.half.id, one.partition)
            except CheckpointError:
                one.why = "delivered and other halves alternate too often for one checkpoint"
                continue
            for name, offset, metadata in ((described.half.name, half.offset, text), (described.op.name, 0, op)):
                self._checkpoints[name, one.partition] = TopicPartition(name, one.partition, offset, metadata)

    def _refusal(self, span: Span, discards: int | None) -> str | None:
        if discards is None:
            raise KafkaUnreachable(f"{self.channel.discard_topic}/{span.partition} does not answer: try again")
        if span.start:
            return f"it begins at offset {span.start}: what was before may be delivered, or lost"
        written = "its discard partition was written to: what was dropped there is not distinct from what was delivered"
        return written if discards else None

    @property
    def is_provable(self) -> bool:
        return not self.gaps and not any(one.why for one in self.partitions)

    @property
    def outcome(self) -> str:
        if self.is_resumed:
            return "resumed"
        if not self.partitions:
            return "nothing to resume"
        return "possible" if self.is_provable else "refused"

    def document(self) -> dict[str, Any]:
        found = {"channel": self.channel.name, "outcome": self.outcome}
        return {**found, "partitions": self.partitions, "not_searched": self.gaps}

    def consequences(self) -> Iterator[str]:
        if self.partitions:
            yield "a relay gets the halves that are not delivered"

    def resume(self) -> None:
        """Commit the checkpoints, where there is none yet."""
        committed = commit_missing(self.kafka, self.channel.relay_group, self._checkpoints)
        half = {place for place in self._checkpoints if place[0] == self.channel.half_topic}
        if late := sorted(half - committed):
            names = ", ".join(f"{topic}/{number}" for topic, number in late)
            raise UsageError(f"{names} got a checkpoint meanwhile, which was not changed. Run this again.")
        self.is_resumed = True


def _read_halves(messages: Iterator[Message]) -> tuple[Mapping[int, list[StoredHalf]], Mapping[str, int], int]:
    """Return halves by partition, the lowest timestamp that their messages can have by topic, and the latest time."""
    halves: dict[int, list[StoredHalf]] = defaultdict(list)
    since: dict[str, int] = {}
    now = time.time_ns() // 1_000_000
    for message in messages:
        partition, offset, appended = message.partition() or 0, message.offset() or 0, message.timestamp()[1]
        try:
            half = Half(partition, offset, appended, parse_half(headers_of(message)))
        except ProtocolError:
            halves[partition].append(StoredHalf(offset, ""))
            continue
        halves[partition].append(StoredHalf(offset, half.control.transaction_id))
        since[half.control.topic] = min(since.get(half.control.topic, half.stamped_ms), half.stamped_ms)
        now = max(now, appended)
    return halves, since, now


LOCK_SECONDS = 15.0  # a relay that finds a halted source owns it for a moment, every few seconds
LOCK_PAUSE_SECONDS = 0.05
AT_ONCE = 10_000  # rows that are looked up with one statement

_UNPROVED = (
    "the real topics do not prove which rows were delivered; --not-delivered-to TOPIC takes your word for one, "
    "--deliver-again delivers all rows"
)
_ALTERED = (
    "it has the id and xid of {}, and another start: look at both, and delete the row if its created_at was altered"
)
_XID_FROM = 19  # where the xid begins in a transaction id
_NEVER_AGAIN = (
    "--deliver-again delivers no row that outbox_delivered or outbox_discarded has. --skip-delivered deletes these; "
    "publish again what Kafka has lost"
)

_SINCE: LiteralString = (
    "SELECT left(topic, 249), count(*), min(least(timestamp, {started} / 1000)) FROM {message}"  # least skips NULL
    " GROUP BY 1"
)
_IDS: LiteralString = "SELECT id, xid::text::bigint, {started}, left(topic, 249) FROM {message} WHERE id = ANY (%s)"
_BACK: LiteralString = (
    "SELECT id, xid::text::bigint, {started}, same FROM (SELECT id, xid, created_at, (SELECT bool_or(l.created_at ="
    " m.created_at) FROM {left} AS l) AS same FROM {message} AS m) AS found WHERE same IS NOT NULL"
)
_DROP: LiteralString = (
    "DELETE FROM {message} AS m USING unnest(%s::bigint[], %s::text[]::xid8[], %s::bigint[]) AS r (id, xid, started)"
    " WHERE {same}"
)
# A progress that was lost begins again as that of what Kafka has, and what was purged before is not known any more.
_SET: LiteralString = (
    "WITH settled AS MATERIALIZED (SELECT min(m.id) AS first_id, range_agg(int8range(m.id, m.id, '[]')) AS ids,"
    " array_agg(m.xid ORDER BY m.id) AS xids, array_agg(m.created_at ORDER BY m.id) AS starts,"
    " int8range(min(m.xid::text::bigint), max(m.xid::text::bigint), '[]') AS xid_range, '{{}}'::integer[] AS targets,"
    " ARRAY[coalesce(service, '')] AS services, ARRAY[coalesce(topic, '')] AS topics,"
    " ARRAY[coalesce(partition, -1)] AS partitions, ARRAY[min(timestamp)] AS earliest"
    " FROM {message} AS m, unnest(%(ids)s::bigint[], %(xids)s::text[]::xid8[], %(starts)s::bigint[])"
    " AS r (id, xid, started) WHERE {same} GROUP BY service, topic, partition),"
    " moved AS (INSERT INTO {source} AS was (id, name, incarnation, batch, delivered, nonce, delivered_nonce,"
    " highest, purged_until) SELECT 0, %(name)s, CAST(%(to_incarnation)s AS uuid), %(to)s, %(to)s,"
    " CAST(%(to_nonce)s AS uuid), CAST(%(to_nonce)s AS uuid), greatest(%(highest)s, CASE WHEN %(lost)s THEN"
    " (SELECT greatest(max(first_id), max(upper(ids))) FROM {delivered}) END), now()"
    " ON CONFLICT (id) DO UPDATE SET (incarnation, batch, delivered, nonce, delivered_nonce, highest, purged_until) ="
    " (excluded.incarnation, excluded.batch, excluded.delivered, excluded.nonce, excluded.delivered_nonce,"
    " greatest(was.highest, excluded.highest),"
    " CASE WHEN was.highest = 0 THEN now() ELSE was.purged_until END),"
    " ({batch}) = ('{{}}', '{{}}', '{{}}', 'empty', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}'), halted = NULL"
    " WHERE was.name = %(name)s"
    " AND was.incarnation::text = %(incarnation)s AND was.batch = %(batch)s AND was.nonce = CAST(%(nonce)s AS uuid)"
    " AND was.delivered = %(delivered)s"
    " RETURNING batch, (batch, nonce, delivered, delivered_nonce, incarnation, cardinality(xids)) = (%(to)s,"
    " CAST(%(to_nonce)s AS uuid), %(to)s, CAST(%(to_nonce)s AS uuid), CAST(%(to_incarnation)s AS uuid), 0)"
    " AND highest >= %(highest)s AS is_set),"
    " {gone}, {evidence},"
    " counted AS (SELECT (SELECT count(*) FROM gone) AS gone, cardinality(%(ids)s::bigint[]) AS named, recorded,"
    " 0 AS moved, 0 AS refused, 0 AS kept FROM recorded) {counted}"
)

RowIdentity = tuple[int, int, int]  # id, xid and start of a row


@dataclass
class Resumption:
    """One halted source, and what is to become of it."""

    source: str
    table: MessageTable
    dsn: str
    kafka: Mapping[str, str]
    channel: Channel
    skips: bool | None  # whether delivered rows are deleted, or all are delivered again; None: nothing is decided
    most: int  # records that are read of a real topic at most
    trusted: frozenset[str] = frozenset()  # of which the operator declares: rows not found there were not delivered

    progress: Progress = NOT_BEGUN
    committed: Committed | None = None
    repair: Repair = field(default_factory=lambda: Repair(""))
    waiting: int = 0
    in_delivery: int = 0
    back: Sequence[RowIdentity] = ()  # rows that have left the table before, and wait again
    delivered: Sequence[RowIdentity] = ()  # other rows that are on their real topics
    gaps: Sequence[Gap] = ()
    deleted: int | None = None
    _came_back: int = 0

    def find(self) -> None:
        """Read the numbers, and search for delivered rows if these are to be skipped. Nothing is written."""
        with opened_table(self.source, self.table, self.dsn) as view:
            since, now_ms = self._look(view)
            if self.repair.halted and not self.repair.refusal and self.skips:
                names = set[str]() if self.progress.lost else {self.source}  # it may have been delivered under another
                search = DeliveredSearch(self.kafka, self.channel, names, self.most, now_ms)
                searched = search.search(since)
                self.delivered = self._delivered(view, searched)
                self.gaps = [*self.gaps, *(gap for gap in searched.unread if gap.topic not in self.trusted)]

    def _look(self, view: TableView) -> tuple[dict[str, int], int]:
        """Return the lowest timestamp of the rows by topic, and the time of the database."""
        left = view.all(_BACK)
        self.back = [(id_, xid, us) for id_, xid, us, is_same in left if is_same]
        altered = [id_ for id_, _, _, is_same in left if not is_same]
        self.gaps = [Gap(f"row {id_}", _ALTERED.format("a row that has left the table")) for id_ in altered[:1]]
        self._came_back = len(left)
        self.repair = self._compare(view)
        found = view.all(_SINCE)
        self.waiting = sum(count for _, count, _ in found)
        self.in_delivery = len(self.progress.ids) - self.progress.missing
        if broken := breaches(view.connection, self.table.places):  # that comes first (R75)
            self.repair = Repair("; ".join(f"{one.what}: {one.harm}" for one in broken), broken[0].fix)
        return {topic: int(since) for topic, _, since in found}, view.now_ms()

    def _compare(self, view: TableView) -> Repair:
        not_begun = NOT_BEGUN._replace(lost=bool(view.all("SELECT FROM {delivered} LIMIT 1")))
        name, self.progress = view.progress() or (self.source, not_begun)
        self.committed = read_committed(self.kafka, self.channel, self.source, stable=True)
        return repair(self.source, name, self.progress, self.committed, self._came_back)

    def _delivered(self, view: TableView, searched: DeliveredSearch) -> list[RowIdentity]:
        """Return the rows whose messages are on their real topics; one that may be there is a gap."""
        wanted, delivered, altered = list(searched.transactions), list[RowIdentity](), dict[str, int]()
        for start in range(0, len(wanted), AT_ONCE):
            for id_, xid, us, topic in view.all(_IDS, (wanted[start : start + AT_ONCE],)):
                own, there = table_transaction_id(xid, us), searched.transactions[id_]
                if own in there:
                    delivered.append((id_, xid, us))
                elif own[_XID_FROM:] in {one[_XID_FROM:] for one in there}:
                    altered.setdefault(topic, id_)
        searched.unread.extend(
            Gap(f"{topic}, row {id_}", _ALTERED.format("a message"), topic) for topic, id_ in altered.items()
        )
        return [row for row in delivered if row not in set(self.back)]

    def resume(self) -> None:
        """Set the numbers and delete delivered rows, in one durable transaction, as the owner of the source."""
        seen = self.progress, self.committed
        why = f"The numbers of table source {self.source} have changed meanwhile; nothing was changed. Run this again."
        with opened_table(self.source, self.table, self.dsn, writes=True) as view:
            self._own(view)
            self.repair = self._compare(view)
            if (self.progress, self.committed) != seen:
                raise UsageError(why)
            try:
                with view.connection.transaction():
                    gone = view.connection.execute(self.table.compose(_DROP), _columns(self.back)).rowcount
                    if not view.all(_SET, self._parameters()) or gone != len(self.back):
                        raise UsageError(why)
            except psycopg.errors.InvalidTextRepresentation as error:
                raise UsageError(f"Table source {self.source}: {Counts.of(error) or error}") from error
            self.deleted = len(self._skipped)

    @property
    def _skipped(self) -> list[RowIdentity]:
        return [*self.back, *self.delivered]

    def _parameters(self) -> dict[str, Any]:
        is_begun = self.repair.incarnation != NOT_BEGUN.incarnation
        rows = dict(zip(("ids", "xids", "starts"), _columns(self.delivered), strict=True))
        return {
            **self.progress._asdict(),
            **rows,
            "to_incarnation": self.repair.incarnation if is_begun else str(uuid4()),
            "highest": max((id_ for id_, _, _ in self._skipped), default=0),
            "to": self.repair.batch,
            "to_nonce": self.repair.nonce,
            "proven": self.repair.batch,
            "name": self.source,
        }

    def _own(self, view: TableView) -> None:
        names = self.table.names
        deadline, lock = time.monotonic() + LOCK_SECONDS, identifier(names.schema, names.source)
        while view.connection.execute(TRY_OWN, (lock,)).fetchone() != (True,):
            if time.monotonic() > deadline:
                owner = view.owner()
                why = f"Table source {self.source} has an owner{f', pid {owner.pid}' if owner else ''}"
                way = "See `outbox pending`; stop the relay that serves it, then run this again."
                raise UsageError(f"{why}; nothing was changed. {way}")
            time.sleep(LOCK_PAUSE_SECONDS)

    @property
    def is_provable(self) -> bool:
        return not self.gaps

    @property
    def outcome(self) -> str:
        if self.deleted is not None:
            return "resumed"
        if not self.repair.halted:
            return "not halted"
        return "refused" if self.why else "possible"

    @property
    def why(self) -> str:
        if self.repair.refusal or not self.repair.halted:
            return self.repair.refusal
        if self.gaps:
            return _UNPROVED
        if self.skips is None:
            return "decide on the rows: --skip-delivered or --deliver-again"
        if not self.skips:
            return _NEVER_AGAIN if self._came_back else ""
        is_known = self.progress.lost or self.delivered
        return NEW if is_foreign(self.progress, self.committed) and not is_known else ""

    def document(self) -> dict[str, Any]:
        repair, known = self.repair, self.committed
        found = {"source": self.source, "outcome": self.outcome, "halted": repair.halted or None}
        new = repair.batch if repair.halted and not repair.refusal else None
        kafka = {"kafka_batch": known.batch if known else None, "new_batch": new}
        numbers = {"why": self.why or None, "batch": self.progress.batch, "delivered": self.progress.delivered, **kafka}
        rows = {"rows": self.waiting, "in_delivery": self.in_delivery, "rows_found_delivered": len(self._skipped)}
        last = {"rows_deleted": self.deleted, "warning": repair.warning or None, "not_searched": self.gaps}
        return {**found, **numbers, **rows, **last}

    def consequences(self) -> Iterator[str]:
        if not self.repair.halted or self.why:
            return
        verb, count = "will be" if self.deleted is None else "were", len(self._skipped)
        twice = "; those that were delivered before are delivered twice"
        if self.skips:
            yield f"{len(self.delivered)} rows, which are on their real topics, {verb} deleted"
            yield f"{len(self.back)} rows, which had left the table before, {verb} deleted" if self.back else ""
            twice = ""
        yield f"the numbers {verb} set to {self.repair.batch}; a relay delivers {self.waiting - count} rows{twice}"
        if is_foreign(self.progress, self.committed):
            yield "another table that is still delivered under this name halts"


def _columns(rows: Sequence[RowIdentity]) -> tuple[list[int], list[str], list[int]]:
    return [id_ for id_, _, _ in rows], [str(xid) for _, xid, _ in rows], [us for _, _, us in rows]
