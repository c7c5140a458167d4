"""Where discarded transactions are: the discard topic, and the table of discarded rows of each message table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Message

from outbox._cli.options import TableCommandSettings, connection
from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._operations.discard_topic import Discarded, decide, read_discarded, read_manifests, why_not
from outbox._operations.discarded_rows import DiscardedMessageRow, DiscardedTable, DiscardedTransaction, Moved
from outbox._operations.table_connection import table_connection
from outbox._postgres.message_table import MessageTable
from outbox._security.own_principal import recorded_name
from outbox._service.exit_codes import warn
from outbox._service.output import signed, utc
from outbox._service.settings import TableSettings
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.identifiers import message_id
from outbox.protocol.op import OpKind

_NOT_OF_HALVES = {"source": None, "discarded_ms": None}
_NOT_OF_ROWS = dict.fromkeys(
    ("truth", "decision", "half_partition", "positions", "unknown_answers", "last_answer"), None
)


class Entry(Protocol):
    """A discarded transaction, of halves or of rows."""

    @property
    def transaction_id(self) -> str:
        """The transaction."""

    @property
    def group(self) -> str:
        """Producer group."""

    @property
    def reason(self) -> str:
        """Why it was discarded."""

    @property
    def detail(self) -> str:
        """Likewise, one sentence."""

    @property
    def messages(self) -> int:
        """How many messages count."""

    def where(self) -> str:
        """Return where it comes from, and since when, for people."""

    def why_not(self, kind: OpKind) -> str:
        """Return why an operator cannot decide so; empty if he can."""

    def fields(self) -> dict[str, Any]:
        """Return it for programs."""


class HalfEntry(NamedTuple):
    """A transaction in the discard topic."""

    manifest: Manifest

    @property
    def transaction_id(self) -> str:
        """The transaction."""
        return self.manifest.transaction_id

    @property
    def group(self) -> str:
        """Producer group."""
        return self.manifest.group

    @property
    def reason(self) -> str:
        """Why it was discarded."""
        return self.manifest.reason

    @property
    def detail(self) -> str:
        """Likewise, one sentence."""
        return self.manifest.detail

    @property
    def messages(self) -> int:
        """How many messages count."""
        return len(self.manifest.positions)

    def where(self) -> str:
        """Return since when it is there, for people."""
        return f"first appended {utc(self.manifest.first_append_time)}"

    def why_not(self, kind: OpKind) -> str:
        """Return why an operator cannot decide so; empty if he can."""
        return why_not(self.manifest, kind)

    def fields(self) -> dict[str, Any]:
        """Return it for programs."""
        manifest = self.manifest
        return {
            "transaction": manifest.transaction_id,
            "group": manifest.group,
            "truth": str(manifest.truth),
            "reason": str(manifest.reason),
            "detail": manifest.detail,
            "decision": manifest.decision.name if manifest.decision else None,
            "half_partition": manifest.partition,
            "positions": str(manifest.positions),
            "messages": len(manifest.positions),
            "appended_ms": manifest.first_append_time,
            "unknown_answers": manifest.checks,
            "last_answer": manifest.last_answer,
            **_NOT_OF_HALVES,
        }


class RowEntry(NamedTuple):
    """A transaction whose rows are discarded."""

    source: str
    rows: DiscardedTransaction

    @property
    def transaction_id(self) -> str:
        """The transaction."""
        return self.rows.transaction_id

    @property
    def group(self) -> str:
        """Producer group."""
        return self.rows.group

    @property
    def reason(self) -> str:
        """Why it was discarded."""
        return self.rows.reason

    @property
    def detail(self) -> str:
        """Likewise, one sentence."""
        return self.rows.detail

    @property
    def messages(self) -> int:
        """How many messages count."""
        return self.rows.messages

    def where(self) -> str:
        """Return where it comes from, and since when, for people."""
        return f"of table source {self.source}, discarded {utc(self.rows.discarded_ms)}"

    def why_not(self, kind: OpKind) -> str:
        """Return why an operator cannot decide so; empty if he can."""
        if self.reason == DiscardReason.MALFORMED and kind is OpKind.DELIVER:
            return "its rows are malformed, and would be discarded again: it can only be dropped"
        return ""

    def fields(self) -> dict[str, Any]:
        """Return it for programs."""
        rows = self.rows
        return {
            "transaction": rows.transaction_id,
            "group": rows.group,
            "reason": rows.reason,
            "detail": rows.detail,
            "messages": rows.messages,
            "appended_ms": rows.started_ms,
            **_NOT_OF_ROWS,
            "source": self.source,
            "discarded_ms": rows.discarded_ms,
        }


class Store(Protocol):
    """One place with discarded transactions."""

    unread: set[str]

    def read(self) -> Iterator[Entry]:
        """Yield what is there now, one at a time; name what cannot be read on standard error."""

    def decide(self, chosen: Sequence[Entry], kind: OpKind, comment: str) -> None:
        """Carry an operator's decision out, or send it to the relay."""

    def left(self, chosen: Sequence[Entry]) -> Sequence[Entry]:
        """Return what of a decision has not had its effect yet."""

    def more_fields(self, entry: Entry) -> dict[str, Any]:
        """Return what a decision has made of a transaction, for programs."""


class TopicStore:
    """The discard topic of a channel."""

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

    def read(self) -> Iterator[HalfEntry]:
        """Yield the transactions that are there now, one at a time."""
        if self._channel is not None:
            yield from map(HalfEntry, read_manifests(self.kafka, self._channel, self._cannot_read))

    def _cannot_read(self, message: Message, error: ProtocolError) -> None:
        place = f"{message.topic()}/{message.partition()} offset {message.offset()}"
        if place not in self.unread:
            self.unread.add(place)
            warn(f"{place} is passed over: {error}")

    def read_one(self, transaction_id: str) -> Discarded | None:
        """Return one transaction; None if it is not there, or Kafka does not answer."""
        return None if self._channel is None else read_discarded(self.kafka, self._channel, transaction_id)

    def decide(self, chosen: Sequence[Entry], kind: OpKind, comment: str) -> None:
        """Send op markers."""
        manifests = [entry.manifest for entry in chosen if isinstance(entry, HalfEntry)]
        if self._channel is not None:  # without Kafka nothing of it can be chosen
            by = signed(recorded_name(self.kafka, self._operator), comment)
            decide(self.kafka, self._channel, manifests, kind, by)

    def left(self, chosen: Sequence[Entry]) -> list[Entry]:
        """Return what no relay has taken from the topic."""
        ids = {entry.transaction_id for entry in chosen}
        return [found for found in self.read() if found.transaction_id in ids]

    def more_fields(self, entry: Entry) -> dict[str, Any]:
        """Return nothing: a delivered transaction keeps its id."""
        del entry
        return {}


class TableStore:
    """The discarded rows of one message table."""

    def __init__(self, source: str, settings: TableSettings) -> None:
        self.source = source
        self._settings = settings
        self.unread: set[str] = set()
        self._moved: dict[Entry, Moved] = {}

    @contextmanager
    def _table(self, *, writes: bool = False) -> Iterator[DiscardedTable]:
        names, dsn = self._settings.message_names(), self._settings.connection_string()
        with table_connection(self.source, names, dsn, writes=writes) as opened:
            yield DiscardedTable(MessageTable(names), opened)

    def read(self) -> Iterator[RowEntry]:
        """Yield the transactions that are there now, one at a time."""
        try:
            with self._table() as table:
                for found in table.read():
                    yield RowEntry(self.source, found)
        except ConfigurationError as error:
            self.unread.add(f"table source {self.source}")
            warn(str(error))

    def messages(self, entry: RowEntry) -> list[DiscardedMessageRow]:
        """Return the rows of a transaction."""
        with self._table() as table:
            return table.messages(entry.rows)

    def decide(self, chosen: Sequence[Entry], kind: OpKind, comment: str) -> None:
        """Move rows back into the message table, or delete them; each transaction by itself.

        Raises:
            ConfigurationError: The database does not answer, or refuses. Earlier transactions stay moved.
        """
        del comment  # no record of the database holds it
        with self._table(writes=True) as table:
            for entry in chosen:
                if not isinstance(entry, RowEntry):
                    continue
                if kind is OpKind.ROLLBACK:
                    table.drop(entry.rows)
                elif (moved := table.deliver(entry.rows)) is not None:
                    self._moved[entry] = moved

    def left(self, chosen: Sequence[Entry]) -> list[Entry]:
        """Return what waits in the message table, and what is discarded again."""
        moved = {entry: self._moved[entry] for entry in chosen if entry in self._moved}
        if not moved:
            return []
        with self._table() as table:
            return [entry for entry, one in moved.items() if table.left(one)]

    def more_fields(self, entry: Entry) -> dict[str, Any]:
        """Return the new ids of a transaction that is back in the message table, by the former message ids."""
        moved = self._moved.get(entry)
        if moved is None:
            return {"new_transaction": None, "new_messages": {}}
        return {
            "new_transaction": moved.transaction_id,
            "new_messages": {
                message_id(entry.transaction_id, former): message_id(moved.transaction_id, new)
                for former, new in zip(moved.former, moved.ids, strict=True)
            },
        }
