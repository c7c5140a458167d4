"""Searches databases, message tables and topics: for one transaction, or for the messages of one key; with a bound."""

import base64
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.range_reader import Span, SpanReader
from outbox._rules.callback_row import Row
from outbox._service.output import utc
from outbox._settings.declared import CheckerDatabase, TableSettings
from outbox._table.table_publisher import ask_table_outcome
from outbox.errors import ConfigurationError, UsageError
from outbox.operator.reading.channel_reader import read_progress, to_half, to_ops, unsettled_spans
from outbox.operator.reading.database_view import DatabaseView
from outbox.operator.reading.delivered_search import SKEW_MS
from outbox.operator.reading.source_report import read_committed
from outbox.operator.reading.table_view import ROWS, FoundRow, TableView, opened_rows
from outbox.operator.reading.topic_walk import Walk, place_of
from outbox.operator.state.coverage import Coverage
from outbox.operator.state.story import EventKind, Findings, FoundMessage, Status, TimelineEvent, born_ms, needed
from outbox.operator.state.unsettled_transactions import Half
from outbox.protocol.discard import manifest_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.half import ANY_PARTITION
from outbox.protocol.identifiers import message_id, started_us_of, table_transaction_id, xid_of
from outbox.protocol.names import LATE_HEADER, MESSAGE_ID_HEADER, SERVICE_HEADER, TARGET_HEADER, Channel
from outbox.protocol.op import NO_OFFSET, MisplacedOpError, OpKind
from outbox.protocol.partitioner import partition_for_key
from outbox.transaction import Outcome


def search_databases(databases: Mapping[str, CheckerDatabase], channel: str, found: Findings) -> list[Row]:
    rows: list[Row] = []
    for name, settings in databases.items():
        try:
            there = DatabaseView(name, settings, channel).rows_of([found.transaction_id])
        except ConfigurationError as error:
            found.miss(f"database {name}", str(error), is_fault=True)
            continue
        found.databases.append(name)
        for row, created in there.values():
            kind = OpKind.COMMIT if row.committed else OpKind.ROLLBACK
            what = "C, committed" if row.committed else "R, a rollback row"
            what += f", damaged: {row.damage}" if row.damage else ""
            detail = f"{what}; half partition {row.partition}, offsets {row.first_offset} to {row.last_offset}"
            found.note(TimelineEvent(created, EventKind.ROW, name, None, None, None, detail, kind, row.positions))
            found.committed_row = row.committed or bool(found.committed_row)
            rows.append(row)
    return rows


def search_tables(tables: Mapping[str, TableSettings], found: Coverage, look: Callable[[str, TableView], None]) -> None:
    for source, settings in tables.items():
        try:
            with opened_rows(source, settings) as view:
                look(source, view)
            found.databases.append(source)
        except ConfigurationError as error:
            found.miss(f"table source {source}", str(error), is_fault=True)


class LocalSearch(NamedTuple):
    """A search in message tables, by the xid that an id carries; without `kafka` no progress is asked for there."""

    found: Findings
    kafka: Mapping[str, str] | None
    channel: Channel

    def look_into_table(self, source: str, view: TableView) -> None:
        found, id_ = self.found, self.found.transaction_id
        if born_ms(id_) is None:  # ids of table mode are UUIDs of version 7
            return
        try:
            outcome = ask_table_outcome(view.table.names, id_, view.connection)
        except UsageError:  # no transaction of this database has the xid
            return
        if outcome is Outcome.ROLLED_BACK and not view.was_rolled_back(xid_of(id_)):
            outcome = Outcome.TOO_OLD  # it has no row in this table: it may have some in others
        progress, committed = (view.progress() or (None, None))[1], None
        try:
            committed = read_committed(self.kafka, self.channel, source) if self.kafka is not None else None
        except ConfigurationError as error:
            found.miss(f"progress of source {source} in Kafka", str(error))
        waiting, discarded = view.find(id_)  # after the progress: what has gone since was delivered
        delivered = view.find_delivered(id_)  # after the rows: their evidence is there when they have gone
        if max(len(waiting), len(discarded), len(delivered)) >= ROWS:
            found.miss(f"table source {source}", f"more than {ROWS} rows of this transaction")
        found.outcomes[source] = Status.NOT_FOUND if outcome is Outcome.TOO_OLD else Status(outcome)
        if outcome is Outcome.OPEN and (pid := view.backend_of(xid_of(id_))) is not None:
            found.backends[source] = pid
        began, what = started_us_of(id_) // 1_000, f"xid {xid_of(id_)}: {outcome}"
        found.note(TimelineEvent(began, EventKind.LOCAL, source, None, None, None, what))
        is_named = progress is not None and id_ in progress.transactions
        batch = frozenset(progress.ids if progress and is_named else ())
        for row in waiting:
            if progress and row.id in batch:
                self._take(source, EventKind.IN_BATCH, row, f", batch {progress.batch}")
                is_delivered = committed == (progress.batch, progress.incarnation, progress.nonce)
                found.delivered |= {row.id} if is_delivered else set()
            else:
                self._take(source, EventKind.WAITS, row, row.detail and f", {row.detail}")
        gone = [(EventKind.REFUSED, row, f": {row.detail}") for row in discarded]
        gone += [(EventKind.DELIVERED, row, f", {row.detail}") for row in delivered]
        for one in gone:
            self._take(source, *one)
        self._note_successors(source, view.successors(id_))

    def _note_successors(self, source: str, successors: Iterable[tuple[str, int]]) -> None:
        for new, at_ms in successors:
            as_new = f"as {new} ({utc(at_ms)}): `outbox trace {new}`"
            self.found.note(TimelineEvent(at_ms, EventKind.AGAIN, source, None, None, None, as_new))

    def _take(self, source: str, what: EventKind, row: FoundRow, more: str) -> None:
        found, detail = self.found, f"for {row.topic}, service {row.service}{more}"
        found.note(TimelineEvent(row.at_ms or row.started_us // 1_000, what, source, None, None, row.id, detail))
        found.sources.add(source)
        if found.position in {None, row.id}:
            found.topics.add(row.topic)
            found.stamped_ms = row.stamped_ms if found.stamped_ms is None else min(found.stamped_ms, row.stamped_ms)


@dataclass
class TopicSearch:
    """Searches topics for one transaction: at known places, else from a time on, ms since 1970."""

    kafka: Mapping[str, str]
    channel: ChannelDescription
    found: Findings
    since: int
    _place: Span | None = None  # where its halves are, by its row or an op
    _targets: dict[str, dict[int, tuple[int, bytes | None]]] = field(default_factory=dict)  # partition, key by position
    _real_since: int | None = None
    _lane: tuple[bytes | None, str, int] = (None, "", 0)  # ordering key, service and half partition

    def search(self, rows: Iterable[Row], more: Iterable[str]) -> None:
        """Read the channel's topics, but for a transaction of table mode, and the real topics of its halves or rows.

        Its callback rows name the place of its halves. When these are gone, only `more` names its real topics.
        """
        for row in rows:
            if row.topic_id == self.channel.half.id:
                self._know(row.partition, row.first_offset, row.last_offset)
            else:
                self.found.miss(f"half topic {row.topic_id}", "the row names it, and it is not the present one")
        self._real_since = self.found.stamped_ms
        with SpanReader(self.kafka, self.channel.channel.relay_group) as reader:
            walk = Walk(reader, self.found)
            if not self.found.is_of_rows:
                numbers, since = self.channel.numbers(), reader.since
                for topic in (self.channel.op.name, self.channel.verdict.name):
                    walk.read(since(topic, numbers, self.since), self._take_op, self._mentions)
                walk.read(since(self.channel.discard.name, numbers, self.since), self._take_discard, self._mentions)
                walk.read(self._half_spans(reader), self._take_half, self._mentions)
            self.found.topics.update(self._targets, more)
            for topic in sorted(self.found.topics):
                self._read_real(walk, topic)
        key, service, partition = self._lane
        if key is not None and not self.found.of(EventKind.VISIBLE):
            earlier = KeySearch(key, (), service, searched=self.found.searched, unread=self.found.unread)
            earlier.halves(self.kafka, self.channel, partition)
            own = (one.detail for one in earlier.found if one.id.startswith(self.found.transaction_id))
            self.found.behind = next(own, "")

    def _half_spans(self, reader: SpanReader) -> list[Span]:
        place = self._place
        if place is None:
            return reader.since(self.channel.half.name, range(self.channel.partitions), self.since)
        whole = reader.whole(place.topic, place.partition)
        if whole.start > place.start:
            gone = f"{place.topic}/{place.partition}, offsets {place.start} to {min(whole.start, place.stop)}"
            self.found.miss(gone, "retention has removed them")
        return [Span(place.topic, place.partition, max(place.start, whole.start), min(place.stop, whole.stop))]

    def _read_real(self, walk: Walk, topic: str) -> None:
        """Read the partitions that the keys choose, then the others: the topic may have had fewer."""
        if not (there := walk.partitions(topic)):
            return
        since = self.since if self._real_since is None else self._real_since - SKEW_MS
        chosen = {
            named if named != ANY_PARTITION or key is None else partition_for_key(key, len(there))
            for named, key in self._targets.get(topic, {}).values()
        }
        first = sorted(chosen.intersection(there)) if ANY_PARTITION not in chosen else []
        for numbers in (first, [number for number in there if number not in first]):
            if numbers and not self._all_are_visible(topic):
                spans = walk.reader.since(topic, numbers, since)
                walk.read(spans, self._take_real, self._mentions, partial(self._all_are_visible, topic))

    def _all_are_visible(self, topic: str) -> bool:
        """Return whether all was found that a topic should have; where it is not known what, all of the transaction."""
        wanted = set(needed(self.found))
        if of_topic := self._targets.get(topic):
            wanted.intersection_update(of_topic)
        return bool(wanted) and wanted <= {event.position for event in self.found.of(EventKind.VISIBLE)}

    def _mentions(self, message: Message) -> bool:
        """Return whether a record may be of the transaction; nearly all others are ruled out without parsing."""
        id_ = self.found.transaction_id.encode()
        if id_ in (message.key() or b"") or id_ in (message.value() or b""):
            return True
        return any(value is not None and id_ in value for _, value in headers_of(message))

    def _know(self, partition: int, first: int, last: int) -> None:
        if first > NO_OFFSET and self._place is None and partition < self.channel.partitions:
            self._place = Span(self.channel.half.name, partition, first, last + 1)

    def _take_op(self, message: Message) -> None:
        try:
            entries = to_ops(message, verdict=message.topic() == self.channel.verdict.name)
        except MisplacedOpError as error:
            self._note(EventKind.OP, message, f"{error}: dropped")
            return
        for source, entry in entries:
            if entry.transaction_id != self.found.transaction_id:
                continue
            ours = (entry.topic_id, entry.partition) == (self.channel.half.id, message.partition())
            words = (
                f"{entry.kind.name} by {source}",
                f"positions {entry.positions}",
                f"check {entry.checks}" if entry.checks else "",
                "" if ours else "of another half topic or partition: dropped",
                f"reason: {entry.reason}" if entry.reason else "",
            )
            kind = entry.kind if ours else None
            counts = entry.positions if entry.kind is OpKind.COMMIT else None
            self._note(EventKind.OP, message, "; ".join(filter(None, words)), kind=kind, counts=counts)
            if ours and entry.kind is not OpKind.UNKNOWN:
                self._know(entry.partition, entry.first_offset, entry.last_offset)

    def _take_half(self, message: Message) -> None:
        half = to_half(message)
        if half is None or half.control.transaction_id != self.found.transaction_id:
            return
        control = half.control
        self._targets.setdefault(control.topic, {})[control.position] = (control.partition, message.key())
        self._real_since = min(half.stamped_ms, half.stamped_ms if self._real_since is None else self._real_since)
        self._lane = control.ordering_key(message.key()), control.service, half.partition
        detail = f"for {control.topic}, service {control.service}, truth {control.truth}"
        self._note(EventKind.HALF, message, detail, control.position)

    def _take_discard(self, message: Message) -> None:
        if message.key() != manifest_key(self.found.transaction_id):
            return
        if message.value() is None:
            self._note(EventKind.LEFT, message, "delivered or removed")
            return
        manifest = parse_manifest(message.value())
        detail = f"{manifest.reason}: {manifest.detail}"
        self._note(EventKind.DISCARDED, message, detail, kind=manifest.decision, counts=manifest.positions)
        if offsets := [offset for _, offset in manifest.offsets]:
            self._know(manifest.partition, min(offsets), max(offsets))

    def _take_real(self, message: Message) -> None:
        headers = dict(headers_of(message))
        id_, _, position = (headers.get(MESSAGE_ID_HEADER) or b"").decode(errors="replace").partition("/")
        if id_ == self.found.transaction_id and position.isdecimal():
            kind, ms = message.timestamp()
            late = (headers.get(LATE_HEADER) or b"").decode(errors="replace")
            detail = f"read_committed readers see it; timestamp {utc(ms)}{late and f'; late: {late}'}"
            time_ms = ms if kind == TIMESTAMP_LOG_APPEND_TIME else None
            self._note(EventKind.VISIBLE, message, detail, int(position), time_ms=time_ms)

    def _note(self, what: EventKind, message: Message, detail: str, position: int | None = None, **more: Any) -> None:
        place = message.topic() or "", message.partition() or 0, message.offset() or 0
        event = TimelineEvent(message.timestamp()[1], what, *place, position, detail)
        self.found.note(replace(event, **more))


@dataclass
class KeySearch(Coverage):
    """Searches for one key; collects what was found, what was read, and what was not."""

    key: bytes
    topics: Collection[str]  # real topics that count; none: all, and no real topic is read
    service: str | None  # that counts; None: all; records of real topics do not name theirs
    found: list[FoundMessage] = field(default_factory=list)
    rows: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # ids, by table source
    _first: dict[tuple[str, bytes | None, int], Half] = field(default_factory=dict)  # by service, ordering key, place

    def __post_init__(self) -> None:
        self._encoded = base64.b64encode(self.key)

    def look_into_table(self, source: str, view: TableView) -> None:
        waiting, discarded = view.find(self.key)
        if max(len(waiting), len(discarded)) >= ROWS:
            self.miss(f"table source {source}", f"more than {ROWS} rows of this key")
        for row in (*waiting, *discarded):
            standing = Status.DISCARDED if row.at_ms else Status.WAITING
            id_ = message_id(table_transaction_id(row.xid, row.started_us), row.id)
            found = (id_, row.topic, row.service, f"row {row.id} of table source {source}")
            if self._note(FoundMessage(standing, *found, row.started_us // 1_000, row.detail)):
                self.rows[source].append(row.id)

    def halves(self, kafka: Mapping[str, str], channel: ChannelDescription, *only: int) -> None:
        progress, unread = read_progress(kafka, channel, only or channel.numbers())
        self.unread += unread
        with SpanReader(kafka, channel.channel.relay_group) as reader:
            walk = Walk(reader, self)
            for number, found in progress.items():
                whole = reader.whole(channel.half.name, number)
                for span, is_unsettled in unsettled_spans(whole, found.half):
                    walk.read([span], partial(self._take_half, is_unsettled))

    def search(self, kafka: Mapping[str, str], channel: ChannelDescription, since_ms: int | None) -> None:
        """Search the channel, and from a time on the key's partition of each topic that was named."""
        self.halves(kafka, channel)
        dead: dict[bytes, FoundMessage] = {}
        with SpanReader(kafka, channel.channel.relay_group) as reader:
            walk = Walk(reader, self)
            spans = [reader.whole(channel.discard.name, number) for number in channel.numbers()]
            walk.read(spans, partial(self._take_discarded, dead))
            for message in dead.values():
                self._note(message)
            for topic in sorted(self.topics) if since_ms is not None else ():
                if there := walk.partitions(topic):
                    number = partition_for_key(self.key, len(there))
                    walk.read(reader.since(topic, [number], since_ms or 0), self._take_real)

    def _note(self, message: FoundMessage) -> bool:
        counts = (not self.topics or message.topic in self.topics) and self.service in {None, message.service or None}
        if counts:
            self.found.append(message)
        return counts

    def _take_half(self, is_unsettled: Callable[[int], bool], message: Message) -> None:
        if message.key() == self.key and is_unsettled(message.offset() or 0) and (half := to_half(message)):
            control = half.control
            id_, lane = control.transaction_id, control.ordering_key(message.key())
            first = self._first.setdefault((control.service, lane, half.partition), half)
            is_behind = lane is not None and first.control.transaction_id != id_
            detail = f"behind {first.control.transaction_id}, since {utc(first.append_time)}" if is_behind else ""
            found = (message_id(id_, control.position), control.topic, control.service, place_of(message))
            self._note(FoundMessage(Status.UNSETTLED, *found, half.append_time, detail))

    def _take_discarded(self, dead: dict[bytes, FoundMessage], message: Message) -> None:
        """Note a dead letter, or that it has left: its key is its message id."""
        place, value = message.key() or b"", message.value()
        if value is None:
            dead.pop(place, None)
        elif self._encoded in value:  # nearly all others are ruled out without parsing; a manifest has no key
            envelope = parse_envelope(value)
            if envelope.key == self.key:  # a half that is malformed may lack the headers
                headers = {name: (content or b"").decode(errors="replace") for name, content in envelope.headers}
                topic = headers.get(TARGET_HEADER, "").rpartition(":")[0]
                service = headers.get(SERVICE_HEADER, "").partition(";")[0]
                found = (place.decode(errors="replace"), topic, service, place_of(message), envelope.timestamp)
                dead[place] = FoundMessage(Status.DISCARDED, *found)

    def _take_real(self, message: Message) -> None:
        if message.key() == self.key:
            id_ = (dict(headers_of(message)).get(MESSAGE_ID_HEADER) or b"").decode(errors="replace")
            found = (id_, message.topic() or "", "", place_of(message), message.timestamp()[1])
            self.found.append(FoundMessage(Status.DELIVERED, *found))
