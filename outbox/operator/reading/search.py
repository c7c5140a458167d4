"""Searches databases, message tables and topics for one transaction: by known places, else by time; with a bound."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import psycopg
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.range_reader import Span, SpanReader, cut_spans
from outbox._postgres.message_table import MessageTable
from outbox._rules.callback_row import Row
from outbox._rules.source_progress import Committed, Progress
from outbox._service.output import utc
from outbox._settings.declared import CheckerDatabase, TableSettings
from outbox._table.table_publisher import ask_table_outcome
from outbox.errors import ConfigurationError, UsageError
from outbox.operator.reading.channel_reader import to_half, to_ops
from outbox.operator.reading.database_view import DatabaseView
from outbox.operator.reading.source_report import read_committed
from outbox.operator.reading.table_view import DeliveredRow, FoundRow, TableView, table_connection
from outbox.operator.state.story import EventKind, Findings, Searched, Status, TimelineEvent, born_ms, needed
from outbox.protocol.check import parse_check
from outbox.protocol.discard import manifest_key, parse_manifest
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import ANY_PARTITION
from outbox.protocol.identifiers import started_us_of, xid_of
from outbox.protocol.names import LATE_HEADER, MESSAGE_ID_HEADER, Channel
from outbox.protocol.op import NO_OFFSET, MisplacedOpError, OpEntry, OpKind, OpSource
from outbox.protocol.partitioner import partition_for_key
from outbox.transaction import Outcome

SKEW_MS = 600_000
"""How far the clocks of application, brokers and databases may be apart."""

ROWS = 10_000
"""Rows of the transaction that are read at most."""

Take = Callable[[Message], None]

_Chosen = tuple[int, bytes | None]
"""The partition that a message names, and its key."""


def search_databases(databases: Mapping[str, CheckerDatabase], channel: str, found: Findings) -> list[Row]:
    """Look up the row of a transaction in all databases; report each that does not answer."""
    rows: list[Row] = []
    for name, settings in databases.items():
        try:
            there = DatabaseView(name, settings, channel).rows_of([found.transaction_id])
        except ConfigurationError as error:
            found.miss(f"database {name}", str(error), is_fault=True)
            continue
        found.databases.append(name)
        for row, created in there.values():
            _note_row(found, name, row, created)
            rows.append(row)
    return rows


def _note_row(found: Findings, database: str, row: Row, created: int) -> None:
    kind = OpKind.COMMIT if row.committed else OpKind.ROLLBACK
    what = "C, committed" if row.committed else "R, a rollback row"
    what += f", damaged: {row.damage}" if row.damage else ""
    detail = f"{what}; half partition {row.partition}, offsets {row.first_offset} to {row.last_offset}"
    found.note(TimelineEvent(created, EventKind.ROW, database, None, None, None, detail, kind, row.positions))
    found.committed_row = row.committed or bool(found.committed_row)


class TableSearch:
    """Searches message tables for one transaction, by the xid that its id carries; without Kafka, not its progress."""

    def __init__(self, kafka: Mapping[str, str] | None, channel: Channel, found: Findings) -> None:
        self._kafka = kafka
        self._channel = channel
        self._found = found

    def search(self, tables: Mapping[str, TableSettings]) -> None:
        """Look into all tables; note each database that does not answer."""
        is_ours = born_ms(self._found.transaction_id) is not None  # ids of table mode are UUIDs of version 7
        for source, settings in tables.items():
            if not (is_ours or settings.is_foreign):
                continue
            try:
                names = settings.message_names()
                with table_connection(source, names, settings.connection_string()) as connection:
                    self._look(source, MessageTable(names), connection)
            except ConfigurationError as error:
                self._found.miss(f"table of source {source}", str(error), is_fault=True)

    def _look(self, source: str, table: MessageTable, connection: psycopg.Connection) -> None:
        id_, view = self._found.transaction_id, TableView(table, connection)
        try:
            outcome = ask_table_outcome(table.names, id_, connection)
        except UsageError:  # no transaction of this database has the xid
            return
        if outcome is Outcome.ROLLED_BACK and not view.was_rolled_back(xid_of(id_)):
            outcome = Outcome.TOO_OLD  # it has no row in this table: it may have some in others
        progress, committed = view.progress(), self._committed(source)
        waiting, discarded = view.find(id_, ROWS)  # after the progress: what has gone since was delivered
        delivered = view.find_delivered(id_, ROWS)  # after the rows: their evidence is there when they have gone
        self._found.outcomes[source] = Status.NOT_FOUND if outcome is Outcome.TOO_OLD else Status(outcome)
        if outcome is Outcome.OPEN and (pid := view.backend_of(xid_of(id_))) is not None:
            self._found.backends[source] = pid
        self._found.databases.append(source)
        self._found.note(
            TimelineEvent(
                started_us_of(id_) // 1_000, EventKind.LOCAL, source, None, None, None, f"xid {xid_of(id_)}: {outcome}"
            )
        )
        self._note(source, waiting, discarded, progress[1] if progress else None, committed)
        for row in delivered:
            detail = f"for {row.topic}, service {row.service}, batch {row.batch}"
            event = TimelineEvent(row.delivered_ms, EventKind.DELIVERED, source, None, None, row.id, detail)
            self._take(source, row, event)

    def _committed(self, source: str) -> Committed | None:
        if self._kafka is None:
            return None
        try:
            return read_committed(self._kafka, self._channel, source)
        except ConfigurationError as error:
            self._found.miss(f"progress of source {source} in Kafka", str(error))
            return None

    def _note(
        self,
        source: str,
        waiting: Iterable[FoundRow],
        discarded: Iterable[FoundRow],
        progress: Progress | None,
        committed: Committed | None,
    ) -> None:
        is_named = progress is not None and self._found.transaction_id in progress.transactions
        batch = frozenset(progress.ids if progress and is_named else ())
        is_delivered = bool(progress and committed == (progress.batch, progress.incarnation, progress.nonce))
        for row in waiting:
            what = EventKind.IN_BATCH if row.id in batch else EventKind.WAITS
            number = f", batch {progress.batch}" if progress and row.id in batch else ""
            detail = f"for {row.topic}, service {row.service}{number}"
            self._take(source, row, TimelineEvent(row.started_us // 1_000, what, source, None, None, row.id, detail))
            if row.id in batch and is_delivered:
                self._found.delivered.add(row.id)
        for row in discarded:
            detail = f"for {row.topic}, service {row.service}: {row.reason}: {row.detail}"
            event = TimelineEvent(row.discarded_ms, EventKind.REFUSED, source, None, None, row.id, detail)
            self._take(source, row, event)

    def _take(self, source: str, row: FoundRow | DeliveredRow, event: TimelineEvent) -> None:
        self._found.note(event)
        self._found.sources.add(source)
        if self._found.position in {None, row.id}:
            self._found.topics.add(row.topic)
            since = self._found.since_ms
            self._found.since_ms = row.stamped_ms if since is None else min(since, row.stamped_ms)


class TopicSearch:
    """Searches topics for one transaction.

    Args:
        since: Search from here on, ms since 1970.
        most: Records that are read of a topic at most.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        channel: ChannelDescription,
        found: Findings,
        since: int,
        most: int,
        passed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._kafka = kafka
        self._channel = channel
        self._found = found
        self._since = since
        self._most = most
        self._passed = passed
        self._id = found.transaction_id.encode()
        self._place: Span | None = None  # where its halves are, by its row or an op
        self._targets: dict[str, dict[int, _Chosen]] = {}  # by topic and position
        self._real_since: int | None = None

    def topics(self, rows: Iterable[Row], more: Iterable[str] = ()) -> None:
        """Read the channel's topics, and the real topics that its halves name.

        Args:
            rows: Its rows, which name the place of its halves.
            more: Real topics to search, too: when the halves are gone, nothing else names them.
        """
        for row in rows:
            self._know_row(row)
        names, numbers = self._channel.channel, range(self._channel.partitions)
        with SpanReader(self._kafka, names.relay_group) as reader:
            for topic in (names.op_topic, names.verdict_topic):
                self._read(reader, reader.since(topic, numbers, self._since), self._take_op)
            self._read(reader, reader.since(names.discard_topic, numbers, self._since), self._take_discard)
            self._read(reader, self._half_spans(reader), self._take_half)
            self._read(reader, self._check_spans(reader), self._take_check)
            for topic in more:
                self._targets.setdefault(topic, {})
            self._found.topics.update(self._targets)
            for topic in self._targets:
                self._read_real(reader, topic)

    def real_topics(self, more: Iterable[str] = ()) -> None:
        """Read the real topics of its rows alone, and those that are named, for a transaction of table mode."""
        self._real_since = self._found.since_ms
        with SpanReader(self._kafka, self._channel.channel.relay_group) as reader:
            for topic in sorted({*self._found.topics, *more}):
                self._read_real(reader, topic)

    # --- where to look ------------------------------------------------------------------------------------------

    def _half_spans(self, reader: SpanReader) -> list[Span]:
        """Where its halves are, if that is known; else all partitions, from the time on."""
        place = self._place
        if place is None:
            return reader.since(self._channel.half.name, range(self._channel.partitions), self._since)
        whole = reader.whole(place.topic, place.partition)
        if whole.start > place.start:
            gone = f"{place.topic}/{place.partition}, offsets {place.start} to {min(whole.start, place.stop)}"
            self._found.miss(gone, "retention has removed them")
        return [Span(place.topic, place.partition, max(place.start, whole.start), min(place.stop, whole.stop))]

    def _check_spans(self, reader: SpanReader) -> list[Span]:
        """Where check requests may be: none is sent after the decision, but by clocks that differ."""
        topic = self._channel.channel.check_topic
        spans = reader.since(topic, reader.partitions(topic), self._since)
        decided = [event.time_ms for event in self._found.decisions() if event.time_ms is not None]
        if not decided:
            return spans
        behind = reader.since(topic, (span.partition for span in spans), max(decided) + SKEW_MS)
        return [replace(span, stop=min(span.stop, one.start)) for span, one in zip(spans, behind, strict=True)]

    def _read_real(self, reader: SpanReader, topic: str) -> None:
        """Read the partitions that the keys choose, then the others: the topic may have had fewer."""
        there, since = reader.partitions(topic), self._since
        if not there:
            self._found.miss(topic, "the topic does not exist, or may not be described")
            return
        if self._real_since is not None:
            since = self._real_since - SKEW_MS
        chosen = {_partition_of(*one, len(there)) for one in self._targets.get(topic, {}).values()}
        first = sorted(chosen.intersection(there)) if ANY_PARTITION not in chosen else []
        for numbers in (first, [number for number in there if number not in first]):
            if numbers and not self._all_are_visible(topic):
                spans = reader.since(topic, numbers, since)
                self._read(reader, spans, self._take_real, partial(self._all_are_visible, topic))

    def _all_are_visible(self, topic: str) -> bool:
        """Return whether all was found that a topic should have; where it is not known what, all of the transaction."""
        wanted = set(needed(self._found))
        if of_topic := self._targets.get(topic):
            wanted.intersection_update(of_topic)
        return bool(wanted) and wanted <= {event.position for event in self._found.of(EventKind.VISIBLE)}

    def _read(
        self, reader: SpanReader, spans: list[Span], take: Take, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Read spans, as much as is allowed, until there is enough; and note what was read."""
        allowed = cut_spans(spans, self._most)
        reached = {(span.topic, span.partition): span.start for span in allowed}
        broken_off = False
        with closing(reader.read(allowed, self._passed)) as records:
            for message in records:
                reached[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
                if self._mentions(message):
                    self._try(take, message)
                    if enough():
                        broken_off = True
                        break
        for span, part in zip(spans, allowed, strict=True):
            stop = reached[span.topic, span.partition] if broken_off else part.stop
            self._found.searched.append(Searched(span.topic, span.partition, span.start, stop, span.stop))
            if part.stop < span.stop and not broken_off:
                left = f"{span.topic}/{span.partition}, offsets {part.stop} to {span.stop}"
                self._found.miss(left, f"more than {self._most} records: see --records")

    def _try(self, take: Take, message: Message) -> None:
        try:
            take(message)
        except ProtocolError as error:
            place = f"{message.topic()}/{message.partition()} offset {message.offset()}"
            self._found.miss(place, str(error), is_fault=True)

    def _mentions(self, message: Message) -> bool:
        """Return whether a record may be of the transaction; nearly all others are ruled out without parsing."""
        if self._id in (message.key() or b"") or self._id in (message.value() or b""):
            return True
        return any(value is not None and self._id in value for _, value in headers_of(message))

    # --- what is found ------------------------------------------------------------------------------------------

    def _know_row(self, row: Row) -> None:
        if row.topic_id == self._channel.half.id:
            self._know(row.partition, row.first_offset, row.last_offset)
        else:
            self._found.miss(f"half topic {row.topic_id}", "the row names it, and it is not the present one")

    def _know(self, partition: int, first: int, last: int) -> None:
        """Note that its halves are here."""
        if first > NO_OFFSET and self._place is None and partition < self._channel.partitions:
            self._place = Span(self._channel.half.name, partition, first, last + 1)

    def _take_op(self, message: Message) -> None:
        try:
            entries = to_ops(message, verdict=message.topic() == self._channel.verdict.name)
        except MisplacedOpError as error:
            self._found.note(TimelineEvent(*_place_of(message, EventKind.OP), None, f"{error}: dropped"))
            return
        for source, entry in entries:
            if entry.transaction_id == self._found.transaction_id:
                self._note_op(message, source, entry)

    def _note_op(self, message: Message, source: OpSource, entry: OpEntry) -> None:
        ours = (entry.topic_id, entry.partition) == (self._channel.half.id, message.partition())
        words = [
            f"{entry.kind.name} by {source}",
            f"positions {entry.positions}",
            *([f"check {entry.checks}"] if entry.checks else []),
            *([] if ours else ["of another half topic or partition: dropped"]),
            *([f"reason: {entry.reason}"] if entry.reason else []),
        ]
        kind = entry.kind if ours else None
        counts = entry.positions if entry.kind is OpKind.COMMIT else None
        self._found.note(TimelineEvent(*_place_of(message, EventKind.OP), None, "; ".join(words), kind, counts))
        if ours and entry.kind is not OpKind.UNKNOWN:
            self._know(entry.partition, entry.first_offset, entry.last_offset)

    def _take_half(self, message: Message) -> None:
        half = to_half(message)
        if half is None or half.control.transaction_id != self._found.transaction_id:
            return
        control = half.control
        self._targets.setdefault(control.topic, {})[control.position] = (control.partition, message.key())
        own = control.options.timestamp
        stamped = half.append_time if own is None else min(own, half.append_time)
        self._real_since = stamped if self._real_since is None else min(stamped, self._real_since)
        detail = f"for {control.topic}, service {control.service}, truth {control.truth}"
        self._found.note(TimelineEvent(*_place_of(message, EventKind.HALF), control.position, detail))

    def _take_discard(self, message: Message) -> None:
        if message.key() != manifest_key(self._found.transaction_id):
            return
        place = _place_of(message, EventKind.DISCARDED)
        if message.value() is None:
            self._found.note(replace(TimelineEvent(*place, None, "delivered or removed"), what=EventKind.LEFT))
            return
        manifest = parse_manifest(message.value())
        detail = f"{manifest.reason}: {manifest.detail}"
        self._found.note(TimelineEvent(*place, None, detail, manifest.decision, manifest.positions))
        self._know(manifest.partition, *_ends([offset for _, offset in manifest.offsets]))

    def _take_check(self, message: Message) -> None:
        try:
            request = parse_check(message.value())
        except NewerFormatError:
            raise
        except ProtocolError:
            return  # the checker counts it as malformed
        if request.transaction_id == self._found.transaction_id:
            detail = f"check {request.check}, of service {request.service}, truth {request.truth}"
            self._found.note(TimelineEvent(*_place_of(message, EventKind.CHECK), None, detail))

    def _take_real(self, message: Message) -> None:
        headers = dict(headers_of(message))
        id_, _, position = (headers.get(MESSAGE_ID_HEADER) or b"").decode(errors="replace").partition("/")
        if id_ == self._found.transaction_id and position.isdecimal():
            late = headers.get(LATE_HEADER)
            kind, ms = message.timestamp()
            detail = f"read_committed readers see it; timestamp {utc(ms)}"
            event = TimelineEvent(*_place_of(message, EventKind.VISIBLE), int(position), detail)
            if late:
                event = replace(event, detail=f"{detail}; late: {late.decode(errors='replace')}")
            self._found.note(event if kind == TIMESTAMP_LOG_APPEND_TIME else replace(event, time_ms=None))


def _partition_of(named: int, key: bytes | None, partitions: int) -> int:
    """Return the partition of a message; -1: it may be in any, as it names none and has no key."""
    return named if named != ANY_PARTITION or key is None else partition_for_key(key, partitions)


def _place_of(message: Message, what: EventKind) -> tuple[int, EventKind, str, int, int]:
    return message.timestamp()[1], what, message.topic() or "", message.partition() or 0, message.offset() or 0


def _ends(offsets: Sequence[int]) -> tuple[int, int]:
    return (min(offsets), max(offsets)) if offsets else (NO_OFFSET, NO_OFFSET)
