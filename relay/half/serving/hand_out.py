"""Hand-out: what of one half partition goes into its next Kafka transaction, judged as it leaves the ledger.

Plain halves leave first (`relay.half.ledger.plain_halves`). Each other transaction goes one road, as a whole:

    the ledger    has it decided, read to its last half, and first of its ordering key: a candidate
    the gate      if a real topic cannot take it now, it waits in the ledger, and those of its ordering key behind it
    handed out    the ledger holds it for settled from here on, and the next of its ordering key is a candidate
    its bodies    are read again if they were let go: from the half topic, or from the discard topic if it was parked
    pre-flight    if its real topics will never take it, it goes to the discard topic with the reason, else to them

The same Kafka transaction writes what leaves the discard topic, undecided halves that are parked, and halves that
cannot be parsed. If it fails, hand-out and ledger are thrown away; the committed checkpoint makes new ones (R18).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from outbox._failpoints import failpoint
from outbox.protocol.names import Channel
from outbox.protocol.record import Record
from relay.delivery.delivery_telemetry import at_gate
from relay.delivery.rules.outgoing import Finding, Target
from relay.delivery.rules.preflight import RealTopic, inspect, refused, topics_of
from relay.delivery.rules.topic_gate import Gate
from relay.delivery.rules.volume import BatchPolicy, Volume
from relay.delivery.sending import Sent
from relay.delivery.topic_lookup import TopicLookup
from relay.half.kafka.half_reader import PartitionReaders
from relay.half.ledger.deliveries import deliver, deliver_plain, discard, discard_malformed, malformed, tombstones
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.plain_halves import Plain
from relay.half.state.discard_index import ParkedHalves, all_keys, record_keys, to_manifest
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction


@dataclass(slots=True)
class Batch:
    """What one Kafka transaction does."""

    removed: Sequence[Transaction]  # transactions that leave the discard topic undelivered
    ready: Sequence[Transaction]  # transactions that were handed out
    moves: Sequence[ParkedHalves]  # halves that go to the discard topic undecided
    malformed: Sequence[Half]
    refused: Mapping[Transaction, Finding] = field(default_factory=dict)
    """The ready ones that go there instead of to their real topics, and why."""
    records: list[Record] = field(default_factory=list)  # what is written, in this order
    plain: Sequence[Plain] = ()

    def __bool__(self) -> bool:
        return self._parts() > 0

    def _parts(self) -> int:
        return sum(map(len, (self.plain, self.removed, self.ready, self.moves, self.malformed)))

    def transactions(self) -> int:
        """Return how many transactions become visible."""
        return len(self.plain) + len(self.ready)

    def delivered(self) -> list[Transaction]:
        """Return the ready ones that go to their real topics."""
        return [transaction for transaction in self.ready if transaction not in self.refused]

    def sent(self) -> Sent:
        """Return what failure or success of its Kafka transaction is judged by."""
        return Sent(Counter(record.topic for record in self.records), self._size, self._parts() <= 1)

    def _size(self) -> int:
        moved = (move.transaction for move in self.moves)
        plain = sum(half.size() for half, _ in self.plain)
        return plain + sum(transaction.size for transaction in chain(self.ready, moved))


class HandOut:
    """Hands out what one half partition has to write."""

    def __init__(
        self, ledger: Ledger, readers: PartitionReaders, lookup: TopicLookup, channel: Channel, volume: Volume
    ) -> None:
        self._ledger = ledger
        self._readers = readers
        self._lookup = lookup
        self._channel = channel
        self._volume = volume
        self._ready: list[Transaction] = []
        self._plain: Sequence[Plain] = ()

    def next(self, now: int) -> Batch:
        """Return the next batch, judged; it may be empty. The ledger holds it for settled.

        What is ready is taken before what is moved: a body that is moved with this batch could not be read again yet.
        """
        self._lookup.describe_stale()
        ledger, limit = self._ledger, self._volume.limit
        self._ready, self._plain = [], ()
        plain = self._plain = self._take_plain(limit, now)
        ready, removed = self._take_ready(limit), ledger.discards.take_removed()
        moves, damaged = ledger.take_parked(now, limit.messages), ledger.take_malformed()
        batch = Batch(removed, ready, moves, damaged, plain=plain)
        self._fetch_bodies(batch)
        self.judge(batch, now)
        if batch.moves:
            failpoint("relay.state.parking")
        return batch

    def judge(self, batch: Batch, now: int) -> None:
        """Have pre-flight decide on what is ready, and make all records."""
        gate, channel, partition = self._lookup.gate, self._channel, self._ledger.partition

        def judge(transaction: Transaction) -> Finding | None:
            return transaction.lacks() or inspect(transaction, gate.topics, channel, now, gate.allowed)

        batch.records += deliver_plain(batch.plain, partition)
        batch.refused = refused(batch.ready, judge, partial(self._lookup.describe_again, in_hand=self._in_hand))
        for transaction in batch.removed:
            batch.records += tombstones(all_keys(transaction), transaction, channel.discard_topic, partition)
        for transaction in batch.ready:
            if transaction in batch.refused:
                batch.records += self._refuse(transaction, batch.refused[transaction])
                continue
            batch.records += deliver(transaction, partition)
            if transaction.discarded:
                batch.records += tombstones(all_keys(transaction), transaction, channel.discard_topic, partition)
        for move in batch.moves:
            if finding := move.transaction.discarded:
                manifest = to_manifest(move.transaction, finding, self._ledger.topic_id, partition)
                batch.records += discard(move, manifest, channel.discard_topic)
        for half in batch.malformed:
            manifest = malformed(half, self._ledger.topic_id, partition)
            self._ledger.discards.refuse(manifest)
            batch.records += discard_malformed(half, manifest, channel.discard_topic)

    def _in_hand(self) -> set[int]:
        """Return the offsets of what is handed out: records of it on real topics may be open, and are not missing."""
        ready = {half.offset for transaction in self._ready for half in transaction.all_halves()}
        return ready.union(half.offset for half, _ in self._plain)

    def _take_plain(self, limit: BatchPolicy, now: int) -> Sequence[Plain]:
        """Take plain halves; a topic that is new here, or a batch that must be smaller, needs a closer look."""
        gate, deferred, is_reduced = self._lookup.gate, self._ledger.deferred, self._volume.is_reduced

        def open_to(service: str, target: Target) -> RealTopic | None:
            return None if is_reduced or deferred.holds(service) else gate.open_to(service, target)

        return self._ledger.take_plain(open_to, limit, now)

    def _take_ready(self, limit: BatchPolicy) -> Sequence[Transaction]:
        """Take what may go to its real topics; a topic that is new here is looked at first."""
        ready, is_new = self._ready, True
        while is_new:
            messages = limit.messages - sum(len(transaction.halves) for transaction in ready) - len(self._plain)
            size = limit.bytes - sum(transaction.size for transaction in ready)
            ready += take_ready(self._ledger, self._lookup.gate, messages, size)
            is_new = self._lookup.describe_unknown(self._in_hand)
        at_gate(self._lookup.gate.take_news(), partition=self._ledger.partition)
        return ready

    def _fetch_bodies(self, batch: Batch) -> None:
        """Read bodies again that were let go. What was parked has its topics described again, too."""
        late = [transaction for transaction in batch.ready if transaction.discarded]
        others = [transaction for transaction in batch.ready if not transaction.discarded]
        lists = [*(transaction.all_halves() for transaction in others), *(move.halves for move in batch.moves)]
        if wanted := [half.offset for half in chain.from_iterable(lists) if not half.has_body()]:
            bodies = self._readers.halves.fetch(wanted)
            for transaction in others:
                transaction.replace(bodies)
            for move in batch.moves:
                move.halves[:] = [bodies.get(half.offset, half) for half in move.halves]
        if late:
            bodies = self._readers.discards.fetch(dict(chain.from_iterable(map(_places, late))))
            for transaction in late:
                transaction.replace(bodies)
            self._lookup.describe_late(set().union(*map(topics_of, late)), self._in_hand)
            failpoint("relay.late_fetched")

    def _refuse(self, transaction: Transaction, finding: Finding) -> Iterator[Record]:
        lies_there, topic = transaction.discarded is not None, self._channel.discard_topic
        if lies_there and transaction.copies:
            # Once the decision is gone, nothing would select a half of a position: only that one stays there.
            yield from tombstones(record_keys(transaction).values(), transaction, topic, self._ledger.partition)
            transaction.keep_counted()
            lies_there = False
        manifest = self._ledger.refuse(transaction, finding)
        halves = [] if lies_there else list(transaction.halves.values())
        yield from discard(ParkedHalves(transaction, halves), manifest, topic)


def _places(transaction: Transaction) -> Iterator[tuple[bytes, int]]:
    """Yield the keys of the halves that a parked transaction delivers, and their offsets."""
    keys = record_keys(transaction)
    return ((keys[half.offset], half.offset) for half in transaction.counted())


def take_ready(ledger: Ledger, gate: Gate, messages: int, size: int) -> list[Transaction]:
    """Hand out committed transactions in their order, about so many messages and bytes.

    A transaction whose real topic cannot take it waits in the ledger, and those of its ordering key behind it.
    """
    taken = ledger.discards.take_resumed(messages)
    messages -= sum(len(transaction.halves) for transaction in taken)
    candidates = ledger.deliveries.candidates()
    while messages > 0 and size > 0 and (transaction := next(candidates, None)):
        if (topic := gate.closed_to(transaction)) is not None:
            ledger.deliveries.queue.hold(transaction, topic)
            continue
        ledger.deliveries.hand_out(transaction)
        taken.append(transaction)
        messages -= len(transaction.halves)
        size -= transaction.size
    return taken
