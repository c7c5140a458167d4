"""The consumer of the receipts: it decides which topics to read from which offsets, and completes the receipts."""

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
from outbox._kafka.record_headers import headers_of
from outbox._receipts.receipt import Receipt, VisibleAt
from outbox._receipts.seen import Sightings
from outbox._receipts.transaction_end import LocalState
from outbox.errors import Discarded, OutboxError, RolledBack
from outbox.protocol.discard import is_manifest_key, manifest_key, parse_manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import MESSAGE_ID_HEADER, Channel, Place
from outbox.protocol.op import OpKind, OpSource, parse_op

log = logging.getLogger("outbox")

Troubles = dict[str, str]
"""The present error of each topic, or of the connection (an empty name)."""

REMEMBERED = 100_000
"""Maximum number of sightings kept for receipts that wait later; 30 MB at most."""

LINGER_SECONDS = 30.0
"""How long a topic is read after its last receipt, because another one is likely."""

_GROWTH_SECONDS = 5.0
"""Interval between checks for new partitions."""

_POLL_SECONDS = 0.02
_BATCH = 1_000
_METADATA_SECONDS = 1.0


class _Discard(NamedTuple):
    """A transaction in the discard topic."""

    place: Place
    reason: str
    detail: str


Sighting = VisibleAt | _Discard | OpSource
"""A message on its real topic, a transaction's manifest in the discard topic, or the source of a ROLLBACK op marker."""


class Watch:
    """One wait for a message. The first result or error completes it, from any thread.

    Args:
        receipt: Receipt of the message.
    """

    def __init__(self, receipt: Receipt) -> None:
        id_ = receipt.transaction_id
        self.receipt = receipt
        self.future: Future[VisibleAt] = Future()
        self.message_key = receipt.message_id.encode()
        self.manifest_key = manifest_key(id_)
        self.rollback_key = _rollback_key(id_)
        self.topics: tuple[str, ...] = ()  # topics with records about the message
        self.needs: dict[Place, int] = {}  # start offsets of partitions that are not read from there yet

    def follow(self, when_over: Callable[[Watch], None]) -> None:
        """Fail the watch when the local transaction rolls back in this process; call `when_over` when it is done."""
        end = self.receipt.end
        end.listen(self._check_end)
        self.future.add_done_callback(lambda _: end.stop_listening(self._check_end))
        self.future.add_done_callback(lambda _: when_over(self))
        self._check_end()

    def _check_end(self) -> None:
        never = self.receipt.why_never()
        if never is not None:
            self.fail(never)

    def succeed(self, place: VisibleAt) -> None:
        """Complete the watch: the message is visible."""
        with suppress(InvalidStateError):  # it is done already
            self.future.set_result(place)

    def fail(self, error: Exception) -> None:
        """Complete the watch with an error."""
        with suppress(InvalidStateError):  # as above
            self.future.set_exception(error)


class VisibilityReader:
    """Reads topics for watches, in one thread.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel.
        changed: Added or finished watches.
        troubles: Receives the present errors; other threads read it.

    Raises:
        ConfigurationError: The properties are not valid for a consumer.
    """

    def __init__(
        self, kafka: Mapping[str, Any], channel: Channel, changed: SimpleQueue[Watch], troubles: Troubles
    ) -> None:
        self._channel = channel
        self._changed = changed
        self._troubles = troubles
        self._seen: Sightings[Sighting] = Sightings(REMEMBERED)
        self._seeks = 0
        self._waiting: dict[bytes, set[Watch]] = defaultdict(set)  # by each of its keys
        self._unserved: set[Watch] = set()  # those that need records before the present start offsets
        self._watchers: Counter[str] = Counter()  # of each topic
        self._left_at: dict[str, float] = {}  # when the last watcher of a topic left
        self._counts: dict[str, int] = {}  # number of partitions of each topic
        self._growth_due = time.monotonic() + _GROWTH_SECONDS
        self._manifests: dict[Place, set[bytes]] = defaultdict(set)  # read since the last end of their partition
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
        """Whether no topic is read, because no receipt waits or did in the last 30 s."""
        return not self._watchers

    def turn(self) -> None:
        """Process added and finished watches, then read the available records, or wait some ms for them."""
        self._take_changes()
        self._unserved = {watch for watch in self._unserved if not self._serve(watch)}
        self._follow_growth()
        self._drop_topics()
        self._seek()
        for message in self._read():
            self._take(message)

    # --- watches, and the offsets that they need

    def _take_changes(self) -> None:
        with suppress(Empty):
            while True:
                watch = self._changed.get_nowait()
                if watch.future.done():
                    self._remove(watch)
                else:
                    self._add(watch)

    def _add(self, watch: Watch) -> None:
        """Add a watch. Op and verdict topic are read too, unless the transaction is known to have committed."""
        watch.topics = (watch.receipt.topic, self._channel.discard_topic)
        if watch.receipt.end.state is not LocalState.COMMITTED:
            watch.topics += (self._channel.op_topic, self._channel.verdict_topic)
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
        """Yield each partition with its start offset: 0 if its end was unknown at `publish()` or it was added later."""
        ends = receipt.since.get(topic, ())
        if topic not in self._counts:
            self._ask_count(topic)
        for number in range(max(self._counts[topic], len(ends))):
            yield (topic, number), ends[number] if number < len(ends) else 0

    def _serve(self, watch: Watch) -> bool:
        """Return whether all records that a watch needs are remembered or will be read."""
        watch.needs = {place: start for place, start in watch.needs.items() if not self._seen.need(place, start)}
        return not watch.needs

    def _follow_growth(self) -> None:
        """Check for new partitions every 5 s, and read them from offset 0."""
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
        """Update the partition count of a topic, 0 if it does not exist; return whether Kafka answered."""
        try:
            self._counts[topic] = len(self._consumer.list_topics(topic, _METADATA_SECONDS).topics[topic].partitions)
        except KafkaException as error:
            self._counts.setdefault(topic, 0)
            self._trouble(topic, error.args[0])
            return False
        return True

    def _drop_topics(self) -> None:
        now = time.monotonic()
        for topic in [topic for topic, count in self._watchers.items() if not count]:
            if now > self._left_at[topic] + LINGER_SECONDS:
                del self._watchers[topic], self._left_at[topic]
                del self._counts[topic]
                self._troubles.pop(topic, None)
                self._seen.drop_topic(topic)

    def _seek(self) -> None:
        if self._seeks != self._seen.seeks:
            self._seeks = self._seen.seeks
            positions = self._seen.positions().items()
            self._consumer.assign([TopicPartition(*place, offset) for place, offset in positions])

    # --- records

    def _read(self) -> Iterable[Message]:
        """Return the available records; wait only for the first."""
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
            self._seen.reached_end(place, offset)
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
        if place[0] in {self._channel.op_topic, self._channel.verdict_topic}:
            return _rollbacks(message, verdict=place[0] == self._channel.verdict_topic)
        return _visible(message, place)

    def _discards(self, message: Message, place: Place) -> Iterable[tuple[bytes, Sighting]]:
        """Yield a manifest, which counts only at the end of its partition: until then its tombstone may follow."""
        key, value = message.key() or b"", message.value()
        if not is_manifest_key(key):
            return
        if value is None:
            self._seen.remove(key)
            return
        with suppress(ProtocolError):
            manifest = parse_manifest(value)
            self._manifests[place].add(key)
            yield key, _Discard(place, manifest.reason, manifest.detail)

    def _conclude_all(self, key: bytes) -> None:
        for watch in [*self._waiting.get(key, ())]:
            self._conclude(watch)

    def _conclude(self, watch: Watch) -> None:
        """Complete a watch from its sightings: a visible record first, then a rollback, then a discard."""
        visible = self._seen.get(watch.message_key)
        rollback = self._seen.get(watch.rollback_key)
        discard = self._seen.get(watch.manifest_key)
        if isinstance(visible, VisibleAt):
            watch.succeed(visible)
        elif isinstance(rollback, OpSource) and watch.receipt.end.state is not LocalState.COMMITTED:
            watch.fail(_rolled_back(watch.receipt, rollback))
        elif isinstance(discard, _Discard) and self._seen.at_end(discard.place):
            watch.fail(_discarded(watch.receipt, discard))

    # --- errors

    def _connection_error(self, error: KafkaError) -> None:
        self._trouble("", error)

    def _trouble(self, topic: str, error: KafkaError) -> None:
        """Note an error and continue: each receipt has its own timeout. Rights on the group are not needed."""
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return
        text = f"reading {topic or 'Kafka'} failed: {error.name()}"
        if self._troubles.get(topic) != text:
            log.warning("Receipts are delayed: %s (%s)", text, error.str())
            self._troubles[topic] = text


def _properties(kafka: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return the properties of a consumer with manual assignment that commits no offsets."""
    return {
        "fetch.wait.max.ms": 50,  # a new assignment waits for the pending fetch
        "queued.max.messages.kbytes": 16_384,
        "log_level": 2,  # errors are reported once, by error_cb
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
    for name, value in headers_of(message):
        if name == MESSAGE_ID_HEADER and value is not None:
            yield value, VisibleAt(*place, message.offset() or 0)


def _rollbacks(message: Message, *, verdict: bool) -> Iterable[tuple[bytes, Sighting]]:
    with suppress(ProtocolError):
        source, entries = parse_op(message.value(), headers_of(message), verdict=verdict)
        for entry in entries:
            if entry.kind is OpKind.ROLLBACK:
                yield _rollback_key(entry.transaction_id), source


def _rolled_back(receipt: Receipt, source: OpSource) -> OutboxError:
    return RolledBack(
        receipt.transaction_id, f"Message {receipt.message_id} will never be visible: the {source} decided ROLLBACK."
    )


def _discarded(receipt: Receipt, discard: _Discard) -> OutboxError:
    return Discarded(
        receipt.transaction_id,
        discard.reason,
        f"Message {receipt.message_id} was not delivered: its transaction is in the discard topic "
        f"({discard.reason}: {discard.detail}).",
    )
