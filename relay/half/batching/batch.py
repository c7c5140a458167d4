"""What one Kafka transaction of the relay does: what the ledger hands out, turned into records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from outbox.protocol.names import Channel
from outbox.protocol.record import Record
from relay.delivery.rules.allow_list import EVERYTHING, AllowList
from relay.delivery.rules.outgoing import Finding
from relay.delivery.rules.preflight import LookAgain, RealTopic, inspect, refused
from relay.delivery.rules.topic_gate import Gate
from relay.half.batching.outgoing_records import deliver, discard, discard_malformed, malformed, remove, remove_halves
from relay.half.ledger.ledger import Ledger
from relay.half.state.discard_index import ParkedHalves, record_keys, to_manifest
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction


@dataclass(frozen=True, slots=True)
class Batch:
    """What the ledger handed out for one Kafka transaction.

    Args:
        removed: Transactions that leave the discard topic undelivered.
        ready: Transactions that go to their real topics, unless pre-flight refuses them.
        moves: Halves that go to the discard topic undecided.
    """

    removed: Sequence[Transaction]
    ready: Sequence[Transaction]
    moves: Sequence[ParkedHalves]
    malformed: Sequence[Half]

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.removed or self.ready or self.moves or self.malformed)

    def is_single(self) -> bool:
        """Return whether it holds no more than one transaction or half, and cannot be split."""
        return len(self.removed) + len(self.ready) + len(self.moves) + len(self.malformed) <= 1

    def size(self) -> int:
        """Return its approximate size as the ledger counts it, bytes."""
        return sum(transaction.size for transaction in chain(self.ready, (move.transaction for move in self.moves)))

    def late(self) -> list[Transaction]:
        """Those of the ready ones that are in the discard topic."""
        return [transaction for transaction in self.ready if transaction.discarded]

    def bodies_wanted(self) -> dict[bytes, int]:
        """Return records of the discard topic that must be fetched: their keys, and half offsets."""
        wanted: dict[bytes, int] = {}
        for transaction in self.late():
            keys = record_keys(transaction)
            wanted |= {keys[half.offset]: half.offset for half in transaction.counted()}
        return wanted

    def put_in(self, bodies: Mapping[int, Half]) -> None:
        """Put in the halves that were fetched, by half offset."""
        for transaction in self.late():
            transaction.replace(bodies)

    def halves_wanted(self) -> list[int]:
        """Half offsets of what goes from the half topic, and whose bodies were let go."""
        ready = [half for found in self.ready if not found.discarded for half in found.all_halves()]
        moved = [half for move in self.moves for half in move.halves]
        return [half.offset for half in chain(ready, moved) if not half.has_body()]

    def put_in_halves(self, bodies: Mapping[int, Half]) -> None:
        """Put in the halves that were fetched from the half topic, by offset."""
        for transaction in self.ready:
            if not transaction.discarded:
                transaction.replace(bodies)
        for move in self.moves:
            move.halves[:] = [bodies.get(half.offset, half) for half in move.halves]


def offsets(transactions: Iterable[Transaction]) -> set[int]:
    """Return the offsets of all halves of some transactions."""
    return {half.offset for transaction in transactions for half in transaction.all_halves()}


def take_ready(ledger: Ledger, gate: Gate, messages: int, size: int) -> list[Transaction]:
    """Hand out committed transactions in their order, about so many messages and bytes; they count as settled.

    A transaction whose real topic cannot take it waits in the ledger, and those of its ordering key behind it.

    Args:
        size: How many bytes.
    """
    taken = ledger.discards.take_resumed(messages)
    messages -= sum(len(transaction.halves) for transaction in taken)
    if messages <= 0 or size <= 0:
        return taken
    for transaction in ledger.deliveries.candidates():
        topic = gate.closed_to(transaction)
        if topic is not None:
            ledger.deliveries.queue.hold(transaction, topic)
            continue
        ledger.deliveries.hand_out(transaction)
        taken.append(transaction)
        messages -= len(transaction.halves)
        size -= transaction.size
        if messages <= 0 or size <= 0:
            break
    return taken


def take_batch(ledger: Ledger, ready: Sequence[Transaction], now: int, messages: int) -> Batch:
    """Take what can be written now.

    Args:
        ledger: It holds for settled what it hands out.
        ready: What is ready, taken before what is moved: the bodies of a half that goes to the discard topic with
            this batch could not be fetched from there.
        now: The broker's time, ms.
        messages: How many are moved at most, about.
    """
    return Batch(ledger.discards.take_removed(), ready, ledger.take_parked(now, messages), ledger.take_malformed())


@dataclass(slots=True)
class Outcome:
    """What a batch comes to.

    Args:
        records: What the Kafka transaction writes, in this order.
    """

    records: list[Record] = field(default_factory=list)
    delivered: list[Transaction] = field(default_factory=list)
    refused: list[tuple[Transaction, Finding]] = field(default_factory=list)

    def topics(self) -> Counter[str]:
        """Return how many records it writes to each topic."""
        return Counter(record.topic for record in self.records)


def settle_batch(
    batch: Batch,
    ledger: Ledger,
    topics: Mapping[str, RealTopic | None],
    channel: Channel,
    now: int,
    allowed: AllowList = EVERYTHING,
    look_again: LookAgain = set,
) -> Outcome:
    """Return the records of a batch. What pre-flight refuses is put into the ledger's discard index.

    Args:
        batch: With its bodies put in.
        topics: The real topics that exist, by name.
        now: The broker's time, ms.
        look_again: Brings `topics` up to date.
    """

    def judge(transaction: Transaction) -> Finding | None:
        return transaction.lacks() or inspect(transaction, topics, channel, now, allowed)

    findings = refused(batch.ready, judge, look_again)
    outcome = Outcome()
    for transaction in batch.removed:
        outcome.records.extend(remove(transaction, channel.discard_topic, ledger.partition))
    for transaction in batch.ready:
        if transaction in findings:
            _refuse(transaction, findings[transaction], ledger, channel, outcome)
        else:
            _deliver(transaction, ledger.partition, channel, outcome)
    for move in batch.moves:
        if move.transaction.discarded:
            manifest = to_manifest(move.transaction, move.transaction.discarded, ledger.topic_id, ledger.partition)
            outcome.records.extend(discard(move, manifest, channel.discard_topic))
    for half in batch.malformed:
        manifest = malformed(half, ledger.topic_id, ledger.partition)
        ledger.discards.refuse(manifest)
        outcome.records.extend(discard_malformed(half, manifest, channel.discard_topic))
    return outcome


def _deliver(transaction: Transaction, partition: int, channel: Channel, outcome: Outcome) -> None:
    outcome.records += deliver(transaction, partition)
    outcome.delivered.append(transaction)
    if transaction.discarded:
        outcome.records.extend(remove(transaction, channel.discard_topic, partition))


def _refuse(transaction: Transaction, finding: Finding, ledger: Ledger, channel: Channel, outcome: Outcome) -> None:
    lies_there = transaction.discarded is not None
    if lies_there and transaction.copies:
        # Once the decision is gone, nothing would select a half of a position: only that one stays there.
        outcome.records.extend(remove_halves(transaction, channel.discard_topic, ledger.partition))
        transaction.keep_counted()
        lies_there = False
    manifest = ledger.refuse(transaction, finding)
    halves = [] if lies_there else list(transaction.halves.values())
    outcome.records.extend(discard(ParkedHalves(transaction, halves), manifest, channel.discard_topic))
    outcome.refused.append((transaction, finding))
