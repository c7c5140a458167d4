"""A small world around a ledger: two logs, local transactions, a checker, crashes; and what must hold in it.

The world knows the truth: which local transactions committed and where their halves lie. The ledger sees records only.
A delivery counts when its Kafka transaction commits; a crash throws the ledger away and makes a new one from the last
committed checkpoint, through the strings that a real relay would find, and from the discard topic as it would be read.
"""

import enum
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import SimpleNamespace
from typing import Any

import relay.half.ledger.partition_progress
from checker.rules.verdicts import Verdict, op_entry
from outbox._kafka.channel import ChannelDescription
from outbox._rules.callback_row import Row
from outbox._rules.topic_description import TopicDescription
from outbox.protocol import names
from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint, parse_half_checkpoint, parse_op_checkpoint, runs_of
from outbox.protocol.discard import DiscardReason, Manifest, manifest_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.half import NO_OPTIONS, HalfControl, HalfOptions, Truth, parse_half
from outbox.protocol.op import NO_OFFSET, RANKED, OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from relay.delivery.rules.outgoing import OutgoingTransaction
from relay.delivery.rules.preflight import RealTopic
from relay.delivery.rules.topic_gate import Gate, GateChange, GatePolicy
from relay.delivery.rules.volume import BatchPolicy, Volume
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.op_decisions import EarlyOp
from relay.half.ledger.partition_progress import Checkpoints
from relay.half.ledger.pending_transactions import KEEP, BodyPolicy
from relay.half.serving.hand_out import Batch, HandOut, take_ready
from relay.half.state.check_schedule import CheckPolicy
from relay.half.state.discard_index import from_manifest, record_keys
from relay.half.state.half_records import Half, OpRecord
from relay.half.state.message_transaction import Transaction
from relay.half.state.parking import DEFAULT, ParkingPolicy

TOPIC_ID = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
OP_TOPIC_ID = "0b8e2c11-77aa-4a53-8f0e-5d6c7b8a9f00"
VERDICT_TOPIC_ID = "0b8e2c11-77aa-4a53-8f0e-5d6c7b8a9f01"
PARTITION = 3
SERVICE = "orders"
POLICY = CheckPolicy()
CHANNEL = names.Channel("outbox")
DESCRIPTION = ChannelDescription(
    CHANNEL,
    TopicDescription(CHANNEL.half_topic, TOPIC_ID, 4, 3, {}),
    TopicDescription(CHANNEL.op_topic, OP_TOPIC_ID, 4, 3, {}),
    TopicDescription(CHANNEL.verdict_topic, VERDICT_TOPIC_ID, 4, 3, {}),
    TopicDescription(CHANNEL.check_topic, OP_TOPIC_ID, 4, 3, {}),
    TopicDescription(CHANNEL.discard_topic, OP_TOPIC_ID, 4, 3, {"max.message.bytes": "4194304"}),
    4,
)
TOPICS = {"real": RealTopic(4, 10_000)}
ENDLESS = BatchPolicy(sys.maxsize, sys.maxsize)
PATIENT, IMPATIENT = GatePolicy(), GatePolicy(0)
SOON = ParkingPolicy(service_pending_max=2, undecided_max_age_ms=2_500, check_max=2)
FLOODED = ParkingPolicy(service_pending_max=1)


def transaction_id(number: int) -> str:
    return str(uuid.UUID(int=(0x01900000 << 96) | (7 << 76) | (2 << 62) | number))


def half(
    offset: int,
    number: int,
    position: int = 0,
    *,
    key: bytes | None = None,
    service: str = SERVICE,
    options: HalfOptions = NO_OPTIONS,
    truth: Truth = Truth.ROW,
    time: int = 1_000,
) -> Half:
    control = HalfControl("real", -1, transaction_id(number), position, service, truth, options)
    return Half(offset, time, key, b"value", tuple(control.encode()), control)


def damaged(offset: int, time: int = 1_000) -> Half:
    return Half(offset, time, None, b"?", (), None, "a control header is missing")


def entry(
    kind: OpKind,
    number: int,
    positions: str,
    first: int,
    last: int,
    *,
    checks: int = 0,
    reason: str = "",
    topic_id: str = TOPIC_ID,
    partition: int = PARTITION,
) -> OpEntry:
    return OpEntry(
        kind, transaction_id(number), topic_id, partition, Positions.parse(positions), first, last, checks, reason
    )


def op(offset: int, *entries: OpEntry, source: OpSource = OpSource.PRODUCER, time: int = 1_000) -> OpRecord:
    return OpRecord(offset, time, source, entries)


def new_ledger(
    half_checkpoint: HalfCheckpoint | None = None,
    op_checkpoint: OpCheckpoint | None = None,
    parking: ParkingPolicy = DEFAULT,
    bodies: BodyPolicy = KEEP,
    *,
    verdict_checkpoint: OpCheckpoint | None = None,
    halves: Iterable[Half] = (),  # what it reads then, before ops
    ops: Iterable[OpRecord] = (),
) -> Ledger:
    """A ledger from checkpoints, by default those of an empty partition; without a last one no verdict will come."""
    ledger = Ledger(
        TOPIC_ID,
        PARTITION,
        Checkpoints(
            half_checkpoint or HalfCheckpoint(0, 0),
            op_checkpoint or OpCheckpoint(0, 0),
            verdict_checkpoint or OpCheckpoint(0, 0),
        ),
        POLICY,
        parking,
        bodies,
    )
    if verdict_checkpoint is None:
        ledger.overdue.ops_read_until(sys.maxsize, verdict=True)
    ledger.read_halves(halves)
    ledger.read_ops(ops)
    return ledger


class _Open(Gate):
    def closed_to(self, transaction: OutgoingTransaction) -> None:
        del transaction


OPEN = _Open(GatePolicy(), CHANNEL, PARTITION)
OPEN.update(TOPICS, TOPICS, ())


def taken_ready(ledger: Ledger, messages: int, size: int = sys.maxsize) -> list[Transaction]:
    return take_ready(ledger, OPEN, messages, size)


def waited_for(ledger: Ledger, names: Collection[str]) -> set[str]:
    return ledger.deliveries.queue.topics(names)


def release(ledger: Ledger, change: GateChange) -> None:
    """Release what waits, as the worker does after a describe."""
    ledger.deliveries.queue.release(change.opened)
    ledger.deliveries.queue.release(change.given_up, give_up=True)


def hand_out(
    ledger: Ledger,
    halves: Callable[[Iterable[int]], Mapping[int, Half]] = lambda _: {},
    discards: Callable[[Mapping[bytes, int]], Mapping[int, Half]] = lambda _: {},
    gate: Gate = OPEN,
    topics: Mapping[str, RealTopic] = TOPICS,  # the real topics that there are
    limit: BatchPolicy = ENDLESS,
) -> HandOut:
    """The hand-out of a ledger, where Kafka answers at once: functions return the bodies from both topics."""

    def describe_unknown(_in_hand: object) -> bool:
        unknown = gate.unknown()
        release(ledger, gate.update(unknown, topics, waited_for(ledger, unknown)))
        return bool(unknown)

    def describe_again(names: Collection[str], in_hand: object) -> None:
        del in_hand
        release(ledger, gate.update_better(names, topics, waited_for(ledger, names)))

    # Plain objects: to make mocks of these was most of the time of what runs in this world.
    describing = {"describe_unknown": describe_unknown, "describe_again": describe_again}
    lookup: Any = SimpleNamespace(gate=gate, **describing, describe_late=describe_again, describe_stale=lambda: None)
    readers: Any = SimpleNamespace(halves=SimpleNamespace(fetch=halves), discards=SimpleNamespace(fetch=discards))
    return HandOut(ledger, readers, lookup, CHANNEL, Volume(limit, 5.0))


def _decided(half: Half, marker: EarlyOp) -> Transaction:
    """The transaction of a plain half and its op marker."""
    assert half.control is not None
    transaction = Transaction(half.control.transaction_id, half.control.service, Truth.ROW, None, None, 0)
    transaction.add(half.control.position, half)
    transaction.decide(marker.entry, marker.source, marker.append_time)
    return transaction


class Fate(enum.Enum):
    OPEN = enum.auto()
    COMMITTED = enum.auto()
    ROLLED_BACK = enum.auto()


_VERDICTS = {Fate.OPEN: Verdict.IN_FLIGHT, Fate.COMMITTED: Verdict.COMMITTED, Fate.ROLLED_BACK: Verdict.FENCED}


@dataclass
class Local:
    """A local transaction of the world, and where its halves were acknowledged."""

    number: int
    service: str
    key: bytes | None
    size: int
    fate: Fate = Fate.OPEN
    offsets: dict[int, int] = field(default_factory=dict)
    row: Row | None = None

    @property
    def id(self) -> str:
        return transaction_id(self.number)

    @property
    def lane(self) -> tuple[str, bytes] | None:
        return None if self.key is None else (self.service, self.key)


class World:
    def __init__(
        self,
        *,
        parking: ParkingPolicy = DEFAULT,
        patience: GatePolicy = PATIENT,  # how long transactions wait for a missing topic, ms
        bodies: BodyPolicy = KEEP,
        batch_bytes: int = sys.maxsize,  # what closes a batch, beside the number of messages
        plain: bool = False,  # whether plain halves leave past the ledger
    ) -> None:
        self.plain = plain
        self.parking = parking
        self.patience = patience
        self.bodies = bodies
        self.batch_bytes = batch_bytes
        self.topics = dict(TOPICS)
        self.discard_log: list[Record] = []
        self.due_effects: tuple[dict[str, tuple[int, OpKind]], dict[str, tuple[int, OpKind]]] = ({}, {})
        """Of transactions in the discard topic: offset and kind of the first op, and first verdict, that decides."""
        self.now = 1_000
        self.locals: list[Local] = []
        self.halves: list[Half] = []
        self.ops: list[OpRecord] = []
        self.verdicts: list[OpRecord] = []
        self.inbox: list[CheckRequest] = []
        self.first_seen: dict[str, int] = {}  # the first half of each transaction that can be parsed
        self.delivered: dict[str, tuple[int, ...]] = {}
        self.last_of_lane: dict[tuple[str, bytes], int] = {}
        self.malformed: set[int] = set()
        self.passed: set[tuple[bool, int]] = set()
        self.committed = Checkpoints(HalfCheckpoint(0, 0), OpCheckpoint(0, 0), OpCheckpoint(0, 0))
        self.restore()

    def begin(self, size: int, key: bytes | None, service: str = SERVICE) -> Local:
        local = Local(len(self.locals), service, key, size)
        self.locals.append(local)
        return local

    def send(self, local: Local, *, twice: bool = False, break_it: bool = False) -> None:
        """Send the next half of a transaction, or a straggler; `twice`: stored twice, the second one acknowledged."""
        position = max(local.offsets, default=-1) + 1
        if twice:
            self._append(local, position)
        offset = len(self.halves)
        if break_it:
            self.halves.append(damaged(offset, self.now))
        else:
            self._append(local, position)
        local.offsets[position] = offset

    def _append(self, local: Local, position: int) -> None:
        offset = len(self.halves)
        self.halves.append(half(offset, local.number, position, key=local.key, service=local.service, time=self.now))
        self.first_seen.setdefault(local.id, offset)

    def copy(self, offset: int) -> None:
        original = self.halves[offset]
        new = len(self.halves)
        self.halves.append(
            Half(new, self.now, original.key, original.value, original.headers, original.control, original.error)
        )

    def commit(self, local: Local, struck: frozenset[int] = frozenset()) -> None:
        """The local transaction commits; savepoints that were rolled back struck some of its messages."""
        counted = {position: offset for position, offset in local.offsets.items() if position not in struck}
        offsets = counted.values()
        local.fate = Fate.COMMITTED
        local.row = Row(
            committed=True,
            topic_id=TOPIC_ID,
            partition=PARTITION,
            first_offset=min(offsets, default=NO_OFFSET),
            last_offset=max(offsets, default=NO_OFFSET),
            positions=Positions.of(counted),
        )

    def roll_back(self, local: Local) -> None:
        local.fate = Fate.ROLLED_BACK

    def send_op(self, local: Local) -> None:
        """The producer's op marker of a finished transaction arrives, for the first time or once more."""
        row = local.row
        if row is not None:
            found = (OpKind.COMMIT, row.positions, row.first_offset, row.last_offset)
        else:
            offsets = local.offsets.values()
            ends = (min(offsets, default=NO_OFFSET), max(offsets, default=NO_OFFSET))
            found = (OpKind.ROLLBACK, Positions.of(local.offsets), *ends)
        kind, positions, first, last = found
        self._append_op(OpSource.PRODUCER, OpEntry(kind, local.id, TOPIC_ID, PARTITION, positions, first, last))

    def _append_op(self, source: OpSource, *entries: OpEntry) -> None:
        is_verdict = source in RANKED
        records = self.verdicts if is_verdict else self.ops
        records.append(OpRecord(len(records), self.now, source, entries, "", is_verdict))

    def answer(self, *requests: CheckRequest) -> None:
        """Answer requests as the callback table does, in one op record; open local transactions are in flight."""
        answers = (self._answer(parse_check(request.encode())) for request in requests)
        entries = [found for found in answers if found is not None]
        if entries:
            self._append_op(OpSource.CHECKER, *entries)

    def _answer(self, request: CheckRequest) -> OpEntry | None:
        local = self._local(request.transaction_id)
        return op_entry(request, _VERDICTS[local.fate], local.row)

    def _local(self, id_: str) -> Local:
        return next(local for local in self.locals if local.id == id_)

    def answer_unknown(self, *requests: CheckRequest) -> None:
        entries = [
            OpEntry(
                *(OpKind.UNKNOWN, request.transaction_id, TOPIC_ID, PARTITION, request.positions),
                *(request.first_offset, request.last_offset, request.check, "who knows"),
            )
            for request in requests
        ]
        if entries:
            self._append_op(OpSource.LISTENER, *entries)

    def order_deliveries(self) -> None:
        for manifest in self.discarded().values():
            if manifest.decision is OpKind.COMMIT and manifest.reason is not DiscardReason.INCOMPLETE:
                offsets = [offset for _, offset in manifest.offsets]
                place = (TOPIC_ID, PARTITION, manifest.positions, min(offsets), max(offsets))
                self._append_op(OpSource.OPERATOR, OpEntry(OpKind.DELIVER, manifest.transaction_id, *place))

    def alive(self) -> dict[bytes, bytes]:
        """What the discard topic holds once it is compacted, by key."""
        found: dict[bytes, bytes] = {}
        for record in self.discard_log:
            key = record.key or b""
            found.pop(key, None)
            if record.value is not None:
                found[key] = record.value
        return found

    def discarded(self) -> dict[str, Manifest]:
        """The manifests in the discard topic, by transaction id."""
        found = (parse_manifest(value) for key, value in self.alive().items() if key.endswith(b"/manifest"))
        return {manifest.transaction_id: manifest for manifest in found}

    def _fetch(self, wanted: Mapping[bytes, int]) -> dict[int, Half]:
        alive = self.alive()
        envelopes = [parse_envelope(alive[key]) for key in wanted]
        assert [envelope.offset for envelope in envelopes] == list(wanted.values()), "another half lies under its key"
        return {
            found.offset: Half(
                found.offset, found.timestamp, found.key, found.value, found.headers, parse_half(found.headers)
            )
            for found in envelopes
        }

    def restore(self) -> None:
        """A relay takes over: a new ledger from the committed checkpoints, by way of their strings."""
        half_checkpoint, op_checkpoint, verdict_checkpoint = self.committed
        half_text, op_text = half_checkpoint.encode(TOPIC_ID, 0), op_checkpoint.encode(OP_TOPIC_ID, 0)
        verdict_text = verdict_checkpoint.encode(VERDICT_TOPIC_ID, 0)
        self.ledger = new_ledger(
            parse_half_checkpoint(half_text, half_checkpoint.offset, TOPIC_ID, 0),
            parse_op_checkpoint(op_text, op_checkpoint.offset, OP_TOPIC_ID, 0),
            self.parking,
            self.bodies,
            verdict_checkpoint=parse_op_checkpoint(verdict_text, verdict_checkpoint.offset, VERDICT_TOPIC_ID, 0),
        )
        self.gate = Gate(self.patience, CHANNEL, PARTITION)
        self.ledger.restore_discards(self.discarded().values())
        self.ledger.read_halves(self.halves[offset] for offset in chain.from_iterable(half_checkpoint.unsettled))
        self.ledger.restored()
        self.next_half = half_checkpoint.head
        self.next_ops = [op_checkpoint.offset, verdict_checkpoint.offset]
        self.inbox.clear()

    def read_halves(self, count: int) -> None:
        end = min(self.next_half + count, len(self.halves))
        while self.next_half < (limit := min(end, self.ledger.read_limit(self.next_half))):
            (self.ledger.plain.read if self.plain else self.ledger.read_halves)(self.halves[self.next_half : limit])
            self.next_half = limit

    def read_deferred(self, most: int) -> None:
        """Read deferred halves again, so many at a time, as long as there is room."""
        while wanted := self.ledger.deferred_wanted(most):
            self.ledger.read_deferred([self.halves[offset] for offset in wanted])

    def read_ops(self, count: int) -> None:
        """Read the next ops, one at a time; remember those that the ledger passes."""
        self._read_ops(self.ops[self.next_ops[False] :][:count])

    def read_verdicts(self, count: int) -> None:
        self._read_ops(self.verdicts[self.next_ops[True] :][:count])

    def _read_ops(self, records: list[OpRecord]) -> None:
        for record in records:
            before = self.ledger.counts["op_passed"]
            self.ledger.read_ops([record])
            self.next_ops[record.is_verdict] += 1
            if self.ledger.counts["op_passed"] > before:
                self.passed.add((record.is_verdict, record.offset))
            self._note_effects(record)

    def _note_effects(self, record: OpRecord) -> None:
        """An op that decides what lies in the discard topic must have its effect, whoever dies meanwhile."""
        for found in record.entries:
            manifest = self.discarded().get(found.transaction_id)
            if manifest is not None:
                undecided = manifest.reason is DiscardReason.UNDECIDED
                kinds = {OpKind.COMMIT, OpKind.ROLLBACK} if undecided else {OpKind.DELIVER}
                if found.kind in kinds:
                    self.due_effects[record.is_verdict].setdefault(found.transaction_id, (record.offset, found.kind))

    def take(self, messages: int) -> None:
        """Take what is ready, and crash before its Kafka transaction commits."""
        self._take(messages)
        self.restore()

    def _take(self, messages: int) -> Batch:
        self.ledger.bodies.let_go(self.now)
        self._describe(self.gate.turn(self.now))
        self.ledger.release_crowding()
        limit = BatchPolicy(messages, self.batch_bytes)
        return hand_out(self.ledger, self._bodies, self._fetch, self.gate, self.topics, limit).next(self.now)

    def _bodies(self, offsets: Iterable[int]) -> dict[int, Half]:
        return {offset: self.halves[offset] for offset in offsets}

    def _describe(self, names: set[str]) -> None:
        release(self.ledger, self.gate.update(names, self.topics, waited_for(self.ledger, names)))

    def deliver(self, messages: int) -> None:
        """Take what is ready; its Kafka transaction commits, and the checkpoint with it."""
        batch = self._take(messages)
        records = batch.records
        for found in batch.malformed:
            assert found.offset not in self.malformed, "a malformed half left twice"
            self.malformed.add(found.offset)
        self.discard_log += [record for record in records if record.topic == CHANNEL.discard_topic]
        for transaction in (*(_decided(*pair) for pair in batch.plain), *batch.ready):
            self._hand_out(transaction, records)
        for transaction in (*batch.ready, *batch.removed):
            for due in self.due_effects:
                due.pop(transaction.id, None)
        self.check_checkpoints()
        self._check_index()
        self.committed = self.ledger.checkpoints()

    def _hand_out(self, transaction: Transaction, records: list[Record]) -> None:
        visible = [record for record in records if record.topic == "real" and _id_of(record) == transaction.id]
        refused = self.discarded().get(transaction.id)
        assert bool(visible) == (refused is None), "neither delivered nor discarded, or both"
        if refused is None or refused.reason is DiscardReason.INCOMPLETE:
            self._deliver(transaction)
        for record in visible:
            assert (names.LATE_HEADER in dict(record.headers)) == (transaction.discarded is not None)
            assert record.value == b"value"

    def _deliver(self, transaction: Transaction) -> None:
        local = self._local(transaction.id)
        row = local.row
        assert local.fate is Fate.COMMITTED, "delivered, though it did not commit"
        assert row is not None
        assert transaction.id not in self.delivered, "delivered twice"
        found = {found.control.position: found.offset for found in transaction.counted() if found.control}
        offsets = tuple(found.values())
        intact = [position for position in row.positions if self._is_stored(local, row, position)]
        assert list(found) == intact, "not the positions that count, in their order"
        assert all(row.first_offset <= offset <= row.last_offset for offset in offsets), "a half that does not count"
        assert transaction.complete() == (intact == list(row.positions)), (
            "a whole one discarded, or a torn one delivered"
        )
        self.delivered[transaction.id] = offsets
        if local.lane is not None and transaction.discarded is None:
            first = self.first_seen[transaction.id]
            assert self.last_of_lane.get(local.lane, -1) < first, "delivered out of order"
            self.last_of_lane[local.lane] = first

    def ask(self) -> None:
        self.inbox += self.ledger.take_due(self.now)

    def see_op_end(self) -> None:
        """See the end of the op partition, if it was read, and that of the verdict partition."""
        for verdict, records in enumerate((self.ops, self.verdicts)):
            if self.next_ops[verdict] == len(records):
                self.ledger.overdue.ops_read_until(self.now, verdict=bool(verdict))

    def check_checkpoints(self) -> None:
        """What the ledger would commit now goes forward, and holds for settled only what is."""
        half_checkpoint, *ops = self.ledger.checkpoints()
        old_half, *old_ops = self.committed
        assert half_checkpoint.offset >= old_half.offset, "the committed offset moved backwards"
        assert half_checkpoint.head >= old_half.head, "the committed head moved backwards"
        for op_checkpoint, old_op in zip(ops, old_ops, strict=True):
            assert op_checkpoint.offset >= old_op.offset, "the committed offset of ops or verdicts moved backwards"
            assert op_checkpoint.head >= max(op_checkpoint.offset, old_op.head)
        unsettled = set(chain.from_iterable(half_checkpoint.unsettled))
        assert runs_of(sorted(unsettled)) == half_checkpoint.unsettled
        assert half_checkpoint.offset == min(unsettled, default=half_checkpoint.head)
        limits = vars(relay.half.ledger.partition_progress)  # a history may make them smaller
        is_narrow = half_checkpoint.head - half_checkpoint.offset <= limits["WINDOW"]
        assert is_narrow or len(half_checkpoint.unsettled) <= limits["FEW"], "no string could say it"
        moved = self.discarded()
        for local in self.locals:
            if local.fate is Fate.ROLLED_BACK or local.id in self.delivered:
                continue
            needed = set(local.offsets.values() if local.row is None else self._counted(local, local.row))
            if local.id in moved:
                needed -= self._lie_discarded(local, moved[local.id])
            lost = {offset for offset in needed if offset < half_checkpoint.head} - unsettled - self.malformed
            assert not lost, f"offsets {lost} of transaction {local.number} are held for settled"
        for records, checkpoint in zip((self.ops, self.verdicts), ops, strict=True):
            self._check_ops(records, checkpoint)
        self._check_due(*ops)

    @staticmethod
    def _lie_discarded(local: Local, manifest: Manifest) -> set[int]:
        """Offsets of a transaction's halves that lie in the discard topic, they or, if it is decided, their twins."""
        written = {offset for _, offset in manifest.offsets}
        if manifest.decision is None:
            return written
        positions = {position for position, _ in manifest.offsets}
        return {offset for position, offset in local.offsets.items() if position in positions}

    def _check_due(self, ops: OpCheckpoint, verdicts: OpCheckpoint) -> None:
        """No decision is passed whose effect is not committed; of an op and a verdict that agree, one is kept."""
        due_ops, due_verdicts = self.due_effects
        kept_ops = {id_ for id_, (offset, _) in due_ops.items() if ops.offset <= offset}
        kept_verdicts = {id_ for id_, (offset, _) in due_verdicts.items() if verdicts.offset <= offset}
        agree = {id_ for id_ in due_ops.keys() & due_verdicts.keys() if due_ops[id_][1] is due_verdicts[id_][1]}
        assert due_ops.keys() - kept_ops <= agree & kept_verdicts, "a decision is forgotten"
        assert due_verdicts.keys() - kept_verdicts <= agree & kept_ops, "a decision is forgotten"

    def _check_ops(self, records: list[OpRecord], checkpoint: OpCheckpoint) -> None:
        """No op is passed whose halves all lie ahead, unless that was counted."""
        head = max(self.next_half, self.committed[0].head)
        for record in records[: checkpoint.offset]:
            for found in record.entries:
                first = min(self.first_seen.get(found.transaction_id, found.first_offset), found.first_offset)
                is_passed = (record.is_verdict, record.offset) in self.passed
                assert first < head or is_passed, "an op was passed before its half was read"

    def _check_index(self) -> None:
        """The index says what the discard topic holds, and every record there belongs to a transaction of it."""
        alive, discarded = self.alive(), self.discarded()
        index = self.ledger.discards
        undecided = {id_ for id_, manifest in discarded.items() if manifest.reason is DiscardReason.UNDECIDED}
        gone = {transaction.id for transaction in index._removed}
        resumed = set(index._resumed)
        assert (undecided - gone) - index._parked.keys() == set()
        assert index._parked.keys() <= undecided
        assert index._refused.keys() | gone | resumed >= discarded.keys() - undecided
        keys: set[bytes] = set()
        for id_, manifest in discarded.items():
            transaction = index._parked.get(id_) or from_manifest(manifest)
            pairs = {(position, found.offset) for position, found in transaction.by_offset()}
            waiting = {found.offset for found in index._followers.get(id_, ())}
            written = {pair for pair in pairs if pair[1] not in waiting}
            assert written == set(manifest.offsets), "the manifest lists other halves"
            found = record_keys(transaction)
            keys |= {found[offset] for _, offset in written} | {manifest_key(id_)}
        assert alive.keys() == keys, "a record without a transaction, or a transaction without a record"

    @staticmethod
    def _counted(local: Local, row: Row) -> set[int]:
        return {local.offsets[position] for position in row.positions}

    def drain(self) -> None:
        """Let every open transaction roll back, and everything be read, asked, answered and delivered."""
        self.topics = dict(TOPICS)
        self.batch_bytes = sys.maxsize
        for local in self.locals:
            if local.fate is Fate.OPEN:
                self.roll_back(local)
        turns, turn = 10, 0
        while turn < turns:
            if turn % 3 == 1:
                self.order_deliveries()
            self.read_halves(len(self.halves))
            self.read_deferred(1_000)
            self.read_ops(len(self.ops))
            self.read_verdicts(len(self.verdicts))
            self.see_op_end()
            self.deliver(1_000_000)
            self.ask()
            self.answer(*self.inbox)
            self.inbox.clear()
            self.now += 2 * POLICY.check_interval_max_ms
            turn += 1
            if len(self.ledger.deferred):
                turns = turn + 10
                assert turn < 100 + 10 * len(self.halves), "something stays deferred"
        self.check_all_is_settled()

    def check_all_is_settled(self) -> None:
        assert len(self.ledger.pending) == 0, "something is never settled"
        reasons = {manifest.reason for manifest in self.discarded().values()}
        assert reasons <= {DiscardReason.INCOMPLETE, DiscardReason.MALFORMED}, "something stays in the discard topic"
        checkpoint = self.ledger.checkpoints().half
        assert checkpoint == HalfCheckpoint(len(self.halves), len(self.halves))
        ends = (len(self.ops), len(self.verdicts))
        assert self.ledger.checkpoints()[1:] == tuple(OpCheckpoint(end, end) for end in ends)
        expected = {local.id for local in self.locals if local.row is not None and self._can_arrive(local, local.row)}
        assert set(self.delivered) == expected, "a committed transaction was never delivered"
        assert self.malformed == {found.offset for found in self.halves if found.control is None}
        ledger = self.ledger
        index, parking = ledger.discards, ledger._parking
        kept = (
            *(
                ledger.pending.lanes._last,
                ledger.decisions._early._of,
                *ledger.decisions._early._kept,
                ledger.progress.unsettled._late,
            ),
            *(ledger.plain, ledger.plain._ids, ledger.plain._several),
            *(ledger.deliveries.queue, ledger.deliveries._waiting, ledger.deliveries._lacking),
            *(ledger.deferred._services, ledger.bodies._held),
            *(index._parked, index._followers, index._removed, index._resumed, *index._pins),
            *(parking._weights, parking._heavy, parking._unanswered),
            *(self.gate._unknown, self.gate._closed),
        )
        sizes = [len(lanes) for lanes in kept]
        assert not any(sizes), "something is kept in memory for ever"

    def _can_arrive(self, local: Local, row: Row) -> bool:
        """Whether at least one half that counts can be parsed; INCOMPLETE is a way to leave, too."""
        return any(self._is_stored(local, row, position) for position in row.positions)

    def _is_stored(self, local: Local, row: Row, position: int) -> bool:
        """Whether a half of a position lies among those that count."""
        stored = self.halves[max(row.first_offset, 0) : row.last_offset + 1]
        controls = (found.control for found in stored if found.control)
        return any((control.transaction_id, control.position) == (local.id, position) for control in controls)


def _id_of(record: Record) -> str:
    return str(dict(record.headers)[names.MESSAGE_ID_HEADER], "utf-8").partition("/")[0]  # type: ignore[arg-type]  # a header that the relay writes has bytes
