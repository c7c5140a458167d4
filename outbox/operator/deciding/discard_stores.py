"""Where discarded transactions are: the discard topic, and the table of discarded rows of each message table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from confluent_kafka import Message

from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._postgres.message_table import MessageTable
from outbox._security.own_principal import recorded_name
from outbox._service.exit_codes import warn
from outbox._service.output import signed
from outbox._service.settings import TableSettings
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.operator.deciding.decisions import entry_of, send_decisions
from outbox.operator.reading.discard_topic import read_discarded, read_manifests
from outbox.operator.reading.discarded_rows import DiscardedTable, Moved
from outbox.operator.reading.table_connection import table_connection
from outbox.operator.settings import TableCommandSettings, connection
from outbox.operator.state.discarded import DiscardedTransaction, HalfMessage, RowMessage
from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import message_id
from outbox.protocol.op import OpKind


class Store(Protocol):
    """One place with discarded transactions."""

    unread: set[str]
    """What could not be read."""

    def read(self) -> Iterator[DiscardedTransaction]:
        """Yield what is there now, one at a time; name what cannot be read on standard error."""

    def decide(self, chosen: Sequence[DiscardedTransaction], kind: OpKind, comment: str) -> None:
        """Carry an operator's decision out, or send it to the relay.

        Raises:
            ConfigurationError: Kafka or the database does not answer, or refuses. Earlier transactions stay decided.
        """

    def left(self, chosen: Sequence[DiscardedTransaction]) -> Sequence[DiscardedTransaction]:
        """Return what of a decision has not had its effect yet."""


class TopicStore:
    """The discard topic of a channel; the operator's name goes into the records of his decisions."""

    def __init__(self, settings: TableCommandSettings, operator: str = "") -> None:
        self.kafka = connection(settings)
        self._operator = operator
        self._names = settings.channel_names()
        self.unread: set[str] = set()
        self._channel = self._look()

    def _look(self) -> ChannelDescription | None:
        """Return the channel; None: Kafka does not answer. Message tables can be looked at all the same."""
        try:
            return verify_channel(admin_client(self.kafka), self._names, FIRST_ANSWER_SECONDS)
        except KafkaUnreachable as error:
            self.unread.add(f"topic {self._names.discard_topic}")
            warn(str(error))
            return None

    def read(self) -> Iterator[DiscardedTransaction]:
        """Yield the transactions that are there now, one at a time."""
        if self._channel is not None:
            yield from map(DiscardedTransaction.of, read_manifests(self.kafka, self._channel, self._cannot_read))

    def _cannot_read(self, message: Message, error: ProtocolError) -> None:
        place = f"{message.topic()}/{message.partition()} offset {message.offset()}"
        if place not in self.unread:
            self.unread.add(place)
            warn(f"{place} is passed over: {error}")

    def read_one(self, transaction_id: str) -> tuple[DiscardedTransaction, list[HalfMessage]] | None:
        """Return one transaction with its halves; None if it is not there, or Kafka does not answer."""
        return None if self._channel is None else read_discarded(self.kafka, self._channel, transaction_id)

    def decide(self, chosen: Sequence[DiscardedTransaction], kind: OpKind, comment: str) -> None:
        """Send op markers, each on what its manifest lists; only a relay changes the topic."""
        if self._channel is not None:  # without Kafka nothing of it can be chosen
            by = signed(recorded_name(self.kafka, self._operator), comment)
            entries = [entry_of(one.manifest, kind, by) for one in chosen if one.manifest]
            send_decisions(self.kafka, self._channel, entries)

    def left(self, chosen: Sequence[DiscardedTransaction]) -> list[DiscardedTransaction]:
        """Return what no relay has taken from the topic."""
        ids = {one.transaction for one in chosen}
        return [found for found in self.read() if found.transaction in ids]


class TableStore:
    """The discarded rows of one message table."""

    def __init__(self, source: str, settings: TableSettings) -> None:
        self.source = source
        self._settings = settings
        self.unread: set[str] = set()
        self._moved: dict[DiscardedTransaction, Moved] = {}

    @contextmanager
    def _table(self, *, writes: bool = False) -> Iterator[DiscardedTable]:
        names, dsn = self._settings.message_names(), self._settings.connection_string()
        with table_connection(self.source, names, dsn, writes=writes) as opened:
            yield DiscardedTable(MessageTable(names), opened, self.source)

    def read(self) -> Iterator[DiscardedTransaction]:
        """Yield the transactions that are there now, one at a time."""
        try:
            with self._table() as table:
                yield from table.read()
        except ConfigurationError as error:
            self.unread.add(f"table source {self.source}")
            warn(str(error))

    def messages(self, transaction: DiscardedTransaction) -> list[RowMessage]:
        """Return the rows of a transaction.

        Raises:
            ConfigurationError: The database does not answer, or refuses.
        """
        with self._table() as table:
            return table.messages(transaction)

    def decide(self, chosen: Sequence[DiscardedTransaction], kind: OpKind, comment: str) -> None:
        """Move rows back into the message table, or delete them; each transaction by itself."""
        del comment  # no record of the database holds it
        with self._table(writes=True) as table:
            for one in chosen:
                if kind is OpKind.ROLLBACK:
                    table.drop(one)
                elif (moved := table.deliver(one)) is not None:
                    self._moved[one] = moved

    def left(self, chosen: Sequence[DiscardedTransaction]) -> list[DiscardedTransaction]:
        """Return what waits in the message table, and what is discarded again."""
        moved = {one: self._moved[one] for one in chosen if one in self._moved}
        if not moved:
            return []
        with self._table() as table:
            return [one for one, rows in moved.items() if table.left(rows)]

    def new_ids(self, transaction: DiscardedTransaction) -> tuple[str | None, dict[str, str]]:
        """Return the new id of a transaction that is back in the message table, and the new message ids by the old."""
        moved = self._moved.get(transaction)
        if moved is None:
            return None, {}
        return moved.transaction_id, {
            message_id(transaction.transaction, former): message_id(moved.transaction_id, new)
            for former, new in zip(moved.former, moved.ids, strict=True)
        }
