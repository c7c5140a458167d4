"""Search for the messages of one key, wherever they are: in tables, in the channel's topics, on real topics."""

import base64
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.range_reader import SpanReader
from outbox._postgres.message_table import MessageTable
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.operator.reading.channel_reader import read_progress, to_half, unsettled_spans
from outbox.operator.reading.table_view import ROWS, TableView, table_connection
from outbox.operator.reading.topic_walk import Walk, place_of
from outbox.operator.state.coverage import Coverage, FoundMessage, Standing
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.identifiers import message_id
from outbox.protocol.names import MESSAGE_ID_HEADER, SERVICE_HEADER, TARGET_HEADER
from outbox.protocol.partitioner import partition_for_key


@dataclass
class KeySearch(Coverage):
    """Searches for one key; collects what was found, what was read, and what was not.

    Args:
        topics: Real topics that count; none: all, and no real topic is read.
        service: The service that counts; None: all. Records of real topics do not name theirs.
        rows: Ids of the rows that were found, by table source.
    """

    key: bytes
    topics: Collection[str]
    service: str | None
    passed: Callable[[int], None] = lambda _: None
    found: list[FoundMessage] = field(default_factory=list)
    rows: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._encoded = base64.b64encode(self.key)

    def message_tables(self, tables: Mapping[str, TableSettings]) -> None:
        """Search the rows that wait and those that are discarded."""
        for source, settings in tables.items():
            if settings.is_foreign:
                self.miss(f"table source {source}", "it is a foreign table, whose columns are its application's")
                continue
            names = settings.message_names()
            try:
                with table_connection(source, names, settings.connection_string()) as connection:
                    waiting, discarded = TableView(MessageTable(names), connection).find(self.key)
            except ConfigurationError as error:
                self.miss(f"table source {source}", str(error), is_fault=True)
                continue
            self.databases.append(source)
            if ROWS in {len(waiting), len(discarded)}:
                self.miss(f"table source {source}", f"more than {ROWS} rows of this key")
            for row in (*waiting, *discarded):
                standing = Standing.DISCARDED if row.at_ms else Standing.WAITING
                found = (row.message, row.topic, row.service, f"row {row.id} of table source {source}")
                if self._note(FoundMessage(standing, *found, row.started_us // 1_000, row.detail)):
                    self.rows[source].append(row.id)

    def channel_topics(self, kafka: Mapping[str, str], channel: ChannelDescription) -> None:
        """Search the halves that are not settled, and the discard topic."""
        progress, unread = read_progress(kafka, channel)
        self.unread += unread
        with SpanReader(kafka, channel.channel.relay_group) as reader:
            walk = Walk(reader, self, self.passed)
            for number, one in progress.items():
                for span, is_unsettled in unsettled_spans(reader.whole(channel.half.name, number), one.half):
                    walk.read([span], partial(self._take_half, is_unsettled))
            spans = [reader.whole(channel.channel.discard_topic, number) for number in range(channel.partitions)]
            dead: dict[bytes, FoundMessage] = {}
            walk.read(spans, partial(self._take_discarded, dead))
        for message in dead.values():
            self._note(message)

    def real_topics(self, kafka: Mapping[str, str], group: str, since_ms: int) -> None:
        """Search the key's partition of each topic that was named, from a time on, ms since 1970."""
        with SpanReader(kafka, group) as reader:
            walk = Walk(reader, self, self.passed)
            for topic in sorted(self.topics):
                there = reader.partitions(topic)
                if not there:
                    self.miss(topic, "the topic does not exist, or may not be described", is_fault=True)
                    continue
                number = partition_for_key(self.key, len(there))
                walk.read(reader.since(topic, [number], since_ms), self._take_real)

    def _note(self, message: FoundMessage) -> bool:
        counts = (not self.topics or message.topic in self.topics) and self.service in {None, message.service or None}
        if counts:
            self.found.append(message)
        return counts

    def _take_half(self, is_unsettled: Callable[[int], bool], message: Message) -> None:
        if message.key() == self.key and is_unsettled(message.offset() or 0) and (half := to_half(message)):
            control = half.control
            id_ = message_id(control.transaction_id, control.position)
            standing = Standing.UNSETTLED
            self._note(FoundMessage(standing, id_, control.topic, control.service, place_of(message), half.append_time))

    def _take_discarded(self, dead: dict[bytes, FoundMessage], message: Message) -> None:
        """Note a dead letter, or that it has left: its key is its message id."""
        place, value = message.key() or b"", message.value()
        if value is None:
            dead.pop(place, None)
        elif self._encoded in value:  # nearly all others are ruled out without parsing; a manifest has no key
            envelope = parse_envelope(value)
            if envelope.key == self.key:  # a half that is malformed may lack the headers
                headers = {name: (content or b"").decode(errors="replace") for name, content in envelope.headers}
                topic, service = headers.get(TARGET_HEADER, "").rpartition(":")[0], headers.get(SERVICE_HEADER, "")
                found = (place.decode(errors="replace"), topic, service, place_of(message), envelope.timestamp)
                dead[place] = FoundMessage(Standing.DISCARDED, *found)

    def _take_real(self, message: Message) -> None:
        if message.key() == self.key:
            id_ = (dict(headers_of(message)).get(MESSAGE_ID_HEADER) or b"").decode(errors="replace")
            found = (id_, message.topic() or "", "", place_of(message), message.timestamp()[1])
            self.found.append(FoundMessage(Standing.DELIVERED, *found))
