"""What is discarded in a channel, in the discard topic and in tables, and an operator's decisions on it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.produce import write_all
from outbox._security.own_principal import recorded_name
from outbox._service.exit_codes import warn
from outbox._service.output import Entry, document, signed
from outbox._settings.declared import NO_TABLES
from outbox.errors import ConfigurationError, KafkaUnreachable, UsageError
from outbox.operator.deciding.discarded_rows import DiscardedRows, Moved
from outbox.operator.reading.discards import read_manifests
from outbox.operator.reading.topic_walk import place_of
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.operator.views import OperatorContext
from outbox.operator.words import dead_letters
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.record import Record

LOOK_SECONDS = 0.5


def send_decisions(kafka: Mapping[str, str], channel: ChannelDescription, entries: Iterable[OpEntry]) -> None:
    """Write an operator's decisions into the verdict topic, one record each; their reasons name role and cause."""
    topic = channel.verdict.name
    encoded = ((entry.partition, encode_op([entry], OpSource.OPERATOR)) for entry in entries)
    write_all(kafka, topic, (Record(topic, partition, None, *op) for partition, op in encoded))


def entry_of(manifest: Manifest, kind: OpKind, reason: str) -> OpEntry:
    counted = set(manifest.positions)
    offsets = [offset for position, offset in manifest.offsets if position in counted]
    place = (manifest.topic_id, manifest.partition, manifest.positions, min(offsets), max(offsets))
    return OpEntry(kind, manifest.transaction_id, *place, reason=reason)


class _Topic:
    """The discard topic of a channel; the operator's name goes into the records of his decisions."""

    def __init__(self, settings: OperatorSettings, operator: str) -> None:
        self._keep_ms = settings.keep_discarded_ms
        self.unread: set[str] = set()
        self._desk: OperatorContext | None = None
        try:
            self._desk = OperatorContext(settings, operator)
        except KafkaUnreachable as error:  # message tables can be looked at all the same
            self.unread.add(f"topic {settings.channel_names().discard_topic}")
            warn(str(error))

    def read(self) -> Iterator[DiscardedTransaction]:
        if (desk := self._desk) is not None:
            for manifest in read_manifests(desk.kafka, desk.channel, self._cannot_read):
                yield DiscardedTransaction.of(manifest, self._keep_ms)

    def _cannot_read(self, message: Message, error: ProtocolError) -> None:
        place = place_of(message)
        if place not in self.unread:
            self.unread.add(place)
            warn(f"{place} is passed over: {error}")

    def decide(self, chosen: Sequence[DiscardedTransaction], kind: OpKind, comment: str) -> None:
        """Send op markers, each on what its manifest lists; only a relay changes the topic."""
        if (desk := self._desk) is not None:  # without Kafka nothing of it can be chosen
            by = signed(recorded_name(desk.kafka, desk.operator), comment)
            entries = [entry_of(one.manifest, kind, by) for one in chosen if one.manifest]
            send_decisions(desk.kafka, desk.channel, entries)

    def left(self, chosen: Sequence[DiscardedTransaction]) -> list[DiscardedTransaction]:
        ids = {one.transaction for one in chosen}
        return [found for found in self.read() if found.transaction in ids]


Store = _Topic | DiscardedRows


class Choice(NamedTuple):
    """Which transactions: those that are named, or all; limited by service and reason."""

    ids: Sequence[str] = ()
    every: bool = False
    service: str | None = None
    reason: DiscardReason | None = None

    def of(self, entries: Iterable[DiscardedTransaction]) -> Iterator[DiscardedTransaction]:
        ids = frozenset(self.ids)
        for entry in entries:
            is_named = self.every or entry.transaction in ids
            if is_named and self.service in {None, entry.service} and self.reason in {None, entry.reason}:
                yield entry


class Discards:
    """All discarded transactions of a channel: in its discard topic, and of its message tables."""

    def __init__(self, settings: OperatorSettings, operator: str = "") -> None:
        self.channel = settings.channel
        self.tables = [DiscardedRows(source, table) for source, table in settings.tables.items()]
        self._stores: list[Store] = [_Topic(settings, operator), *self.tables]

    def unread(self) -> list[str]:
        return sorted(place for store in self._stores for place in store.unread)

    def read(self) -> Iterator[DiscardedTransaction]:
        """Yield what is there now, one at a time; name what cannot be read on standard error."""
        return chain.from_iterable(store.read() for store in self._stores)

    def decision(self, choice: Choice, kind: OpKind) -> Decision:
        """Return a decision, which is not made yet; what is named and is not found is refused."""
        named = {store: list(Choice(choice.ids, choice.every).of(store.read())) for store in self._stores}
        found = {entry.transaction for some in named.values() for entry in some}
        if missing := ", ".join(sorted(set(choice.ids) - found)):
            if unread := ", ".join(self.unread()):
                raise ConfigurationError(f"transaction {missing} was not found; {unread} could not be read")
            rows = "nor in a table of discarded messages" if self.tables else f"and no rows were looked at: {NO_TABLES}"
            raise UsageError(f"transaction {missing} is not in the discard topic, {rows}")
        return Decision({store: list(choice.of(some)) for store, some in named.items()}, kind)


_CONSEQUENCES = {
    OpKind.DELIVER: "be delivered out of their order, unless pre-flight refuses them again",
    OpKind.ROLLBACK: "be removed for good although they committed in the database: no consumer will receive them",
}
_LATE = "; halves get the header outbox-late"
_ROWS_BACK = "; {} of them are rows, which go back into their message table with new ids, behind all that wait there"


class Decision:
    """A decision on discarded transactions; of some it may not be made."""

    def __init__(self, chosen: Mapping[Store, Sequence[DiscardedTransaction]], kind: OpKind) -> None:
        self.kind = kind
        self.chosen = list(chain(*chosen.values()))
        self._able = {store: [entry for entry in some if not entry.why_not(kind)] for store, some in chosen.items()}
        self.able = list(chain(*self._able.values()))
        self.left: list[DiscardedTransaction] = []
        self.is_made = False

    def make(self, comment: str) -> None:
        """Carry it out, or send it to the relay; after an error, earlier transactions stay decided."""
        for store, some in self._able.items():
            if some:
                store.decide(some, self.kind, comment)
        self.is_made = True

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.left = [entry for store, some in self._able.items() if some for entry in store.left(some)]
            if not self.left or time.monotonic() > deadline:
                return
            time.sleep(LOOK_SECONDS)

    def moved(self, transaction: DiscardedTransaction) -> Moved:
        rows = (store.moved.get(transaction) for store in self._able if isinstance(store, DiscardedRows))
        return next(filter(None, rows), Moved())

    def intention(self) -> str:
        able = self.able
        messages, rows = sum(entry.messages for entry in able), sum(entry.source is not None for entry in able)
        late, back = (_LATE if rows < len(able) else "", _ROWS_BACK.format(rows) if rows else "")
        more = f"{late}{back}" if self.kind is OpKind.DELIVER else ""
        return f"{len(able)} transactions, {messages} messages, will {_CONSEQUENCES[self.kind]}{more}"

    def new_names(self) -> Iterator[Entry]:
        """Yield the new id of each message that is back in a message table."""
        for one in self.able:
            yield from (Entry(f"{former} is now {new}") for former, new in self.moved(one).messages.items())

    def report(self) -> Iterator[Entry]:
        done, able = "delivered" if self.kind is OpKind.DELIVER else "dropped", self.able
        yield Entry(f"{len(able) - len(self.left)} of {len(able)} transactions were {done}")
        before = {(one.transaction, one.discarded_ms) for one in able}
        again = [one for one in self.left if one.discarded_ms and (one.transaction, one.discarded_ms) not in before]
        yield from dead_letters(again, f"{len(again)} were refused again", self.kind)
        rest = [one for one in self.left if one not in again]
        yield from dead_letters(rest, f"{len(rest)} are still there: no relay has come to them yet", self.kind)

    def documents(self) -> Iterator[dict[str, Any]]:
        there = {(entry.transaction, entry.service): entry for entry in self.left}
        for one in self.chosen:
            moved = self.moved(one)
            still = there.get((moved.transaction or one.transaction, one.service))
            done = "still there" if still else "left"
            why = one.why_not(self.kind) or None
            found = {"outcome": "refused" if why else done if self.is_made else "possible", "why": why}
            new = {} if one.source is None else {"new_transaction": moved.transaction, "new_messages": moved.messages}
            now = replace(still, transaction=one.transaction) if still else one
            yield document(now) | found | new  # halves keep their ids
