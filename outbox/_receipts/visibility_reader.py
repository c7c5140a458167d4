"""The reader behind the receipts: which topics it reads from where on, and what it makes of their records."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox._kafka.admin import checked_properties
from outbox._kafka.client_log import logged
from outbox._receipts.receipt import Receipt, VisibleAt
from outbox._receipts.seen import Place, Sightings
from outbox._receipts.transaction_end import LocalState
from outbox.errors import Discarded, OutboxError, RolledBack
from outbox.protocol.discard import manifest_key, parse_manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Headers
from outbox.protocol.names import MESSAGE_ID_HEADER, Channel
from outbox.protocol.op import OpKind, OpSource, parse_op

log = logging.getLogger("outbox")

Troubles = dict[str, str]
"""The present error of each topic, or of the connection (an empty name)."""

REMEMBERED = 100_000
"""Sightings that are remembered, for those who come to wait only later; 30 MB at most."""

LINGER_SECONDS = 30.0
"""How long a topic is still read after the last one who waited: the next one is not far."""

_GROWTH_SECONDS = 5.0
"""How often a topic is asked for new partitions."""

_POLL_SECONDS = 0.02
_BATCH = 1_000
_METADATA_SECONDS = 1.0


class _Discard(NamedTuple):
    """A transaction in the discard topic."""

    place: Place
    reason: str
    detail: str


Sighting = VisibleAt | _Discard | OpSource
"""A message on its real topic, a transaction's manifest in the discard topic, or who said ROLLBACK in the op topic."""


class Watch:
    """Somebody waits for a message. Whatever ends it first counts, from any thread.

    Args:
        receipt: Of the message.
    """

    def __init__(self, receipt: Receipt) -> None:
        id_ = receipt.transaction_id
        self.receipt = receipt
        self.future: Future[VisibleAt] = Future()
        self.message_key = receipt.message_id.encode()
        self.manifest_key = manifest_key(id_)
        self.rollback_key = _rollback_key(id_)
        self.topics: tuple[str, ...] = ()  # where something of interest may be seen
        self.needs: dict[Place, int] = {}  # what must be read, from which offset on, and is not yet

    def follow(self, when_over: Callable[[Watch], None]) -> None:
        """Follow the end of the local transaction in this process, and tell when the watch is over."""
        end = self.receipt.end
        end.listen(self._look_at_end)
        self.future.add_done_callback(lambda _: end.stop_listening(self._look_at_end))
        self.future.add_done_callback(lambda _: when_over(self))
        self._look_at_end()

    def _look_at_end(self) -> None:
        never = self.receipt.why_never()
        if never is not None:
            self.fail(never)

    def succeed(self, place: VisibleAt) -> None:
        """The message is visible."""
        with suppress(InvalidStateError):  # somebody was faster
            self.future.set_result(place)

    def fail(self, error: Exception) -> None:
        """The message will not be seen."""
        with suppress(InvalidStateError):  # as above
            self.future.set_exception(error)


class VisibilityReader:
    """Belongs to one thread.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel.
        changed: Watches that came, or are over.
        troubles: Where it notes its errors, for others to read.

    Raises:
        ConfigurationError: The properties do not suit a consumer.
    """

    def __init__(
        self, kafka: Mapping[str, Any], channel: Channel, changed: SimpleQueue[Watch], troubles: Troubles
    ) -> None:
        self._channel = channel
        self._changed = changed
        self._troubles = troubles
        self._seen: Sightings[Sighting] = Sightings(REMEMBERED)
        self._moves = 0
        self._waiting: dict[bytes, set[Watch]] = defaultdict(set)  # by each of its keys
        self._unserved: set[Watch] = set()  # whose messages may lie further back than is read at present
        self._watchers: Counter[str] = Counter()  # of each topic
        self._left_at: dict[str, float] = {}  # when the last watcher of a topic left
        self._counts: dict[str, int] = {}  # how many partitions a topic has
        self._growth_due = time.monotonic() + _GROWTH_SECONDS
        self._manifests: dict[Place, set[bytes]] = defaultdict(set)  # seen since the end of their partition was
        with checked_properties():
            self._consumer = Consumer({**_properties(kafka, channel), "error_cb": self._connection_error})

    def __enter__(self) -> Self:
        """Use the reader as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the consumer."""
        self._consumer.close()
        self._troubles.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no topic is read: nobody waits, and nobody did for a while."""
        return not self._watchers

    def turn(self) -> None:
        """Take in who came and went, then read what there is, or wait a moment for it."""
        self._take_changes()
        self._unserved = {watch for watch in self._unserved if not self._serve(watch)}
        self._follow_growth()
        self._let_go()
        self._move()
        for message in self._read():
            self._take(message)

    # --- who waits, and where to read for them

    def _take_changes(self) -> None:
        with suppress(Empty):
            while True:
                watch = self._changed.get_nowait()
                if watch.future.done():
                    self._remove(watch)
                else:
                    self._add(watch)

    def _add(self, watch: Watch) -> None:
        """Whether the transaction was rolled back elsewhere is of interest unless it is known to have committed."""
        watch.topics = (watch.receipt.topic, self._channel.discard_topic)
        if watch.receipt.end.state is not LocalState.COMMITTED:
            watch.topics += (self._channel.op_topic,)
        self._watchers.update(watch.topics)
        for key in _keys(watch):
            self._waiting[key].add(watch)
        watch.needs = {place: start for topic in watch.topics for place, start in self._starts(watch.receipt, topic)}
        self._unserved.add(watch)
        self._conclude(watch)

    def _remove(self, watch: Watch) -> None:
        self._unserved.discard(watch)
        for key in _keys(watch):
            self._waiting[key].discard(watch)
            if not self._waiting[key]:
                del self._waiting[key]
        for topic in watch.topics:
            self._watchers[topic] -= 1
            self._left_at[topic] = time.monotonic()
        watch.topics = ()

    def _starts(self, receipt: Receipt, topic: str) -> Iterable[tuple[Place, int]]:
        """Partitions whose ends were not known, and those that came later, are read from their beginning."""
        ends = receipt.since.get(topic, ())
        if topic not in self._counts:
            self._ask_count(topic)
        for number in range(max(self._counts[topic], len(ends))):
            yield (topic, number), ends[number] if number < len(ends) else 0

    def _serve(self, watch: Watch) -> bool:
        """Whether all that a watch needs is remembered or will be read."""
        watch.needs = {place: start for place, start in watch.needs.items() if not self._seen.need(place, start)}
        return not watch.needs

    def _follow_growth(self) -> None:
        """Look for new partitions, now and then."""
        if time.monotonic() < self._growth_due:
            return
        for topic in self._watchers:
            if not self._ask_count(topic):
                break
            for number in range(self._counts[topic]):
                if not self._seen.reads((topic, number)):
                    self._seen.need((topic, number), 0)
        self._growth_due = time.monotonic() + _GROWTH_SECONDS

    def _ask_count(self, topic: str) -> bool:
        """Ask how many partitions a topic has, none if it does not exist; whether Kafka answered."""
        try:
            self._counts[topic] = len(self._consumer.list_topics(topic, _METADATA_SECONDS).topics[topic].partitions)
        except KafkaException as error:
            self._counts.setdefault(topic, 0)
            self._trouble(topic, error.args[0])
            return False
        return True

    def _let_go(self) -> None:
        now = time.monotonic()
        for topic in [topic for topic, count in self._watchers.items() if not count]:
            if now > self._left_at[topic] + LINGER_SECONDS:
                del self._watchers[topic], self._left_at[topic]
                del self._counts[topic]
                self._troubles.pop(topic, None)
                self._seen.let_go(topic)

    def _move(self) -> None:
        if self._moves != self._seen.moves:
            self._moves = self._seen.moves
            positions = self._seen.positions().items()
            self._consumer.assign([TopicPartition(*place, offset) for place, offset in positions])

    # --- what is read

    def _read(self) -> Iterable[Message]:
        """Whatever is there; waits only for the first."""
        first = self._consumer.poll(_POLL_SECONDS)
        return () if first is None else (first, *self._consumer.consume(_BATCH, 0))

    def _take(self, message: Message) -> None:
        error, topic = message.error(), message.topic() or ""
        place, offset = (topic, message.partition() or 0), message.offset() or 0
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            self._trouble(topic, error)
            return
        self._troubles.pop("", None)
        self._troubles.pop(topic, None)
        if error is not None:
            self._seen.ended(place, offset)
            for key in self._manifests.pop(place, ()):
                self._conclude_all(key)
        else:
            self._seen.passed(place, offset)
            for key, sighting in self._sightings(message, place):
                self._seen.remember(key, place, offset, sighting)
                self._conclude_all(key)

    def _sightings(self, message: Message, place: Place) -> Iterable[tuple[bytes, Sighting]]:
        if place[0] == self._channel.discard_topic:
            return self._discards(message, place)
        if place[0] == self._channel.op_topic:
            return _rollbacks(message)
        return _visible(message, place)

    def _discards(self, message: Message, place: Place) -> Iterable[tuple[bytes, Sighting]]:
        """Manifests count at the end of their partition only: until then their removal may follow."""
        key, value = message.key() or b"", message.value()
        if not key.endswith(b"/manifest"):
            return
        if value is None:
            self._seen.forget(key)
            return
        with suppress(ProtocolError):
            manifest = parse_manifest(value)
            self._manifests[place].add(key)
            yield key, _Discard(place, manifest.reason, manifest.detail)

    def _conclude_all(self, key: bytes) -> None:
        for watch in [*self._waiting.get(key, ())]:
            self._conclude(watch)

    def _conclude(self, watch: Watch) -> None:
        """End a watch if what was seen says so: being visible beats everything, a decision beats a discard."""
        visible = self._seen.get(watch.message_key)
        rollback = self._seen.get(watch.rollback_key)
        discard = self._seen.get(watch.manifest_key)
        if isinstance(visible, VisibleAt):
            watch.succeed(visible)
        elif isinstance(rollback, OpSource) and watch.receipt.end.state is not LocalState.COMMITTED:
            watch.fail(_rolled_back(watch.receipt, rollback))
        elif isinstance(discard, _Discard) and self._seen.at_end(discard.place):
            watch.fail(_discarded(watch.receipt, discard))

    # --- what goes wrong

    def _connection_error(self, error: KafkaError) -> None:
        self._trouble("", error)

    def _trouble(self, topic: str, error: KafkaError) -> None:
        """Note an error and go on: whoever waits has a timeout of his own. Rights on the group are not needed."""
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return
        text = f"reading {topic or 'Kafka'} failed: {error.name()}"
        if self._troubles.get(topic) != text:
            log.warning("%s: %s; receipts go on waiting", text, error.str())
            self._troubles[topic] = text


def _properties(kafka: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """A consumer that joins no generation of its group and commits nothing."""
    return {
        "fetch.wait.max.ms": 50,  # what is newly assigned waits for the fetch before it
        "queued.max.messages.kbytes": 16_384,
        "log_level": 2,  # its errors are told by callback, once
        **logged(kafka),
        "group.id": f"{channel.name}-receipts",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }


def _rollback_key(transaction_id: str) -> bytes:
    return f"{transaction_id}/rollback".encode()


def _keys(watch: Watch) -> tuple[bytes, bytes, bytes]:
    return watch.message_key, watch.manifest_key, watch.rollback_key


def _visible(message: Message, place: Place) -> Iterable[tuple[bytes, Sighting]]:
    for name, value in _headers(message):
        if name == MESSAGE_ID_HEADER and value is not None:
            yield value, VisibleAt(*place, message.offset() or 0)


def _rollbacks(message: Message) -> Iterable[tuple[bytes, Sighting]]:
    with suppress(ProtocolError):
        source, entries = parse_op(message.value(), _headers(message))
        for entry in entries:
            if entry.kind is OpKind.ROLLBACK:
                yield _rollback_key(entry.transaction_id), source


def _headers(message: Any) -> Headers:
    return message.headers() or ()


def _rolled_back(receipt: Receipt, source: OpSource) -> OutboxError:
    return RolledBack(
        receipt.transaction_id, f"message {receipt.message_id} will never be visible: the {source} decided ROLLBACK"
    )


def _discarded(receipt: Receipt, discard: _Discard) -> OutboxError:
    return Discarded(
        receipt.transaction_id,
        discard.reason,
        f"message {receipt.message_id} was not delivered: its transaction lies in the discard topic "
        f"({discard.reason}: {discard.detail})",
    )
