"""What a Kafka transaction left open on a real topic, although it has ended: looked for before the first write there.

A broker that has no leader for a partition when it writes a transaction's markers skips that partition, and the
transaction counts as complete (KAFKA-20734). Its records stay where they are, without an end, until the next Kafka
transaction of the same producer id ends them along with its own: those of an aborted transaction become visible then,
beside what its successor has delivered in their place. So after each take-over, and before anything is written to a
real topic, the records that no reader sees yet are looked at there. Of all transactions of one owner only the last can
hang: if the owner still owes what it wrote, it was aborted, and is ended so; else it was committed, and the next
commit ends it rightly.

Nothing is written to a topic that cannot be looked at, or has no leader.
"""

import time
from collections.abc import Collection, Iterator, Mapping

import structlog
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import end_offsets
from outbox._kafka.consumed_records import headers_of
from outbox.errors import ConfigurationError
from outbox.protocol.record import Record
from relay.delivery.topic_lookup import HangingTransactions
from relay.delivery.transactional_delivery import TransactionalDelivery
from relay.recovery.author import Author, Found, Own, backwards
from relay.recovery.offset_reader import OffsetReader, Offsets

LOOKS = 4
PAUSE_SECONDS = 0.05
"""Between looks: most of what is open belongs to a process at work, and is ended soon."""
READ_AT_ONCE = 1_000
ANSWER_SECONDS = 4.0
"""For the ends of topics: an owner that waits for a broker that is away holds up what goes to the others."""

NO_ANSWER = "not every partition of it has a leader that answers"

log = structlog.get_logger()


class OwnHangingTransactions(HangingTransactions):
    """Of an owner that writes Kafka transactions."""

    def __init__(
        self, kafka: Mapping[str, str], admin: AdminClient, group: str, author: Author, delivery: TransactionalDelivery
    ) -> None:
        self._kafka = kafka
        self._admin = admin
        self._group = group
        self._author = author
        self._delivery = delivery
        self._take_overs = 0
        self._looked_at: dict[str, int] = {}  # topics, with the partitions that they had
        self._reader: OffsetReader | None = None
        self._stopped = False
        self._ends: dict[str, tuple[int, ...]] = {}  # where topics ended at the first look since the last take-over

    def take_stale(self) -> Collection[str]:
        if self._take_overs == self._delivery.take_overs:
            return ()
        self._take_overs = self._delivery.take_overs
        stale, self._looked_at = self._looked_at, {}
        self._ends.clear()
        return stale.keys()

    def stop(self) -> None:
        self._stopped = True
        reader = self._reader
        if reader is not None:
            reader.stop()

    def end(self, topics: Mapping[str, int], in_hand: Collection[int] = frozenset()) -> Mapping[str, str]:
        new = {name: count for name, count in topics.items() if self._looked_at.get(name) != count}
        if not new:
            return {}
        ends = self._first_ends(new)
        stable = self._stable(ends)
        closed = dict.fromkeys(new.keys() - stable.keys(), NO_ANSWER)
        for place, stop in held_back(ends, stable):
            try:
                self._end(place, stop, in_hand)
            except ConfigurationError as error:
                closed[place.topic] = str(error)
        self._looked_at |= {name: count for name, count in new.items() if name not in closed}
        return closed

    def _first_ends(self, topics: Mapping[str, int]) -> Offsets:
        unknown = {name: count for name, count in topics.items() if len(self._ends.get(name, ())) != count}
        self._ends |= end_offsets(self._admin, unknown, ANSWER_SECONDS)
        return {name: self._ends[name] for name, count in topics.items() if len(self._ends.get(name, ())) == count}

    def _stable(self, ends: Offsets) -> Offsets:
        """Up to where readers see everything, when what is being written now has had a moment to be ended."""
        partitions = {name: len(offsets) for name, offsets in ends.items()}
        stable = end_offsets(self._admin, partitions, ANSWER_SECONDS, stable=True)
        for _ in range(LOOKS):
            if not any(held_back(ends, stable)):
                break
            time.sleep(PAUSE_SECONDS)
            stable = end_offsets(self._admin, partitions, ANSWER_SECONDS, stable=True)
        for name in partitions.keys() - stable.keys():
            del self._ends[name]  # it may be another topic when it answers again
        return stable

    def _end(self, place: TopicPartition, stop: int, in_hand: Collection[int]) -> None:
        """End what hangs on a partition of a real topic between its offset and another one, if it is ours."""
        last = self._last_own(place, stop, in_hand)
        if last is None:
            return
        outcome = "aborted" if last.is_owed else "committed"
        log.warning(
            "Records of an unfinished Kafka transaction found",
            topic=place.topic,
            topic_partition=place.partition,
            offset=last.offset,
            outcome=outcome,
        )
        if last.is_owed:
            self._delivery.write_and_abort(last.record)

    def _last_own(self, place: TopicPartition, stop: int, in_hand: Collection[int]) -> Own | None:
        """Return the last record between two offsets that this owner, or a former one, wrote."""
        reader = OffsetReader(self._kafka, place.topic, place.partition, self._group, isolation="read_uncommitted")
        self._reader = reader
        if self._stopped:
            reader.stop()
        try:
            for span in backwards(place.offset, stop, READ_AT_ONCE):
                own = self._author.last_own(list(_read(reader, span)), in_hand)
                if own is not None:
                    return own
        finally:
            self._reader = None
            reader.close()
        return None


def held_back(ends: Offsets, stable: Offsets) -> Iterator[tuple[TopicPartition, int]]:
    """Partitions with records that readers do not see yet: where those begin, and where they end."""
    for topic in stable:
        for number, (stop, start) in enumerate(zip(ends[topic], stable[topic], strict=True)):
            if start < stop:
                yield TopicPartition(topic, number, start), stop


def _read(reader: OffsetReader, span: range) -> Iterator[Found]:
    for message in reader.read_on(span.start):
        offset = message.offset() or 0
        if offset >= span.stop:
            return
        yield Found(as_record(message), offset)


def as_record(message: Message) -> Record:
    """Return the record once more, which its topic took before."""
    topic, partition = message.topic() or "", message.partition()
    number = -1 if partition is None else partition
    headers = list[tuple[str, str | bytes | None]](headers_of(message))
    return Record(topic, number, message.key(), message.value(), headers, message.timestamp()[1])
