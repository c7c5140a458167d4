"""Histories of messages as an audit reads them, made with the protocol's own encoders: correct ones, and faults."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, Row

from outbox.protocol.discard import DiscardReason, Manifest, manifest_key
from outbox.protocol.half import ANY_PARTITION, NO_OPTIONS, HalfControl, HalfOptions, Truth, real_headers
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.names import LATE_HEADER
from outbox.protocol.op import RANKED, OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from spark_jobs.auditing.comparison import compare
from spark_jobs.auditing.judge import Circumstances, judge
from spark_jobs.auditing.quick import sides
from spark_jobs.auditing.service_databases import Database, MessageTables
from spark_jobs.records.audit_verdicts import Verdict
from spark_jobs.records.database_rows import COLUMNS, TABLE_COLUMNS, row_evidence, table_evidence
from spark_jobs.records.delivered import Began, real_evidence
from spark_jobs.records.evidence import Found, evidence
from spark_jobs.records.topics import discard_evidence, half_evidence, op_evidence
from tests.support.spark import KAFKA_SCHEMA, session

TOPIC_ID = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
OTHER_TOPIC_ID = "00000000-3c04-4e7b-9d36-0a1c2b3d4e5f"
NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"
INCARNATION = "c0ffee00-1234-4abc-9def-0123456789ab"
BEGIN = datetime(2026, 11, 22, 5, tzinfo=UTC)
GRACE = 600_000
START = 1_000
"""Where the window begins in the half partition."""

BEHIND = 1_000_000
"""Where it ends; nothing is there."""

HALF_END = 2_000_000

BEGIN_MS = int(BEGIN.timestamp() * 1_000)
BEGAN = Began(BEGIN_MS, BEGIN_MS + 3_600_000, BEGIN_MS + 7_200_000)
"""When the local transactions of table mode begin that are in the window."""

BROKERS_TIME = 1

Expected = dict[tuple[str, int | None], Verdict]
"""Verdicts of those messages that are not delivered once."""

Headers = Sequence[tuple[str, str | bytes | None]]


def verdicts(rows: Sequence[Row]) -> Expected:
    return {(row.transaction_id, row.position): Verdict[row.verdict] for row in rows}


def wrong(rows: Sequence[Row]) -> Expected:
    return {key: verdict for key, verdict in verdicts(rows).items() if verdict is not Verdict.DELIVERED_ONCE}


def seen_quickly(planted: Expected) -> set[str]:
    """Of which transactions a quick audit sees that something is wrong, in general."""
    wrongs = {Verdict.WRONG_TARGET, Verdict.WRONG_CONTENT, Verdict.DISCARDED, Verdict.DANGLING}
    seen = {Verdict.LOST, Verdict.TORN, Verdict.PHANTOM, Verdict.DUPLICATE} | wrongs
    return {id_ for (id_, _), verdict in planted.items() if verdict in seen}


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    time: datetime
    time_type: int = BROKERS_TIME

    def row(self) -> tuple[Any, ...]:
        headers = [(name, value.encode() if isinstance(value, str) else value) for name, value in self.headers]
        place = (self.topic, self.partition, self.offset)
        return (self.key, self.value, *place, self.time, self.time_type, headers)


@dataclass(frozen=True)
class Told:
    """A transaction of the history: its id and its halves."""

    id: str
    control: Sequence[HalfControl]
    halves: Sequence[Record]

    @property
    def positions(self) -> Positions:
        return Positions.of(control.position for control in self.control)

    @property
    def first(self) -> int:
        return self.halves[0].offset

    @property
    def last(self) -> int:
        return self.halves[-1].offset

    def message(self, position: int = 0) -> tuple[str, int | None]:
        return self.id, position


@dataclass
class History:
    """Topics and rows, filled transaction by transaction."""

    topics: Sequence[str] = ("orders", "stock")  # real topics; messages go to them by turns
    halves: list[Record] = field(default_factory=list)
    ops: list[Record] = field(default_factory=list)
    reals: list[Record] = field(default_factory=list)
    discards: list[Record] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    unsettled: set[int] = field(default_factory=set)
    told: list[Told] = field(default_factory=list)
    table_rows: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._offsets = itertools.count(START)
        self._numbers = itertools.count(1)

    def tell(
        self,
        messages: int = 1,
        *,
        key: bytes | None = None,
        service: str = "orders",
        truth: Truth = Truth.ROW,
        options: HalfOptions = NO_OPTIONS,
        partition: int = ANY_PARTITION,
    ) -> Told:
        """The halves of a transaction; without a key each transaction has its own."""
        number = next(self._numbers)
        id_ = make_transaction_id(1_795_000_000_000 + number, number.to_bytes(10))
        key = b"key-%d" % number if key is None else key
        count = len(self.topics)
        controls = [
            HalfControl(self.topics[(number + place) % count], partition, id_, place, service, truth, options)
            for place in range(messages)
        ]
        halves = [self._half(control, key, b"value-%d" % number) for control in controls]
        self.told.append(Told(id_, controls, halves))
        return self.told[-1]

    def _half(self, control: HalfControl, key: bytes | None, value: bytes) -> Record:
        offset = next(self._offsets)
        headers: Headers = [*control.encode(), ("trace", b"x"), ("trace", None)]
        record = Record("outbox.half", 0, offset, key, value, headers, self.time(offset))
        self.halves.append(record)
        return record

    def time(self, offset: int) -> datetime:
        return BEGIN + timedelta(milliseconds=100 * (offset - START))

    def row(
        self,
        told: Told,
        state: str = "C",
        positions: Positions | str | None = None,
        topic_id: str = TOPIC_ID,
        *,
        partition: int = 0,
        shift: int = 0,
    ) -> Told:
        """Its row; `shift` offsets away from where its halves are."""
        listed = told.positions if positions is None else positions
        place = (partition, told.first + shift, told.last + shift)
        self.rows.append(("shop", told.id, told.control[0].service, state, topic_id, *place, str(listed)))
        return told

    def op(
        self,
        told: Told,
        kind: OpKind = OpKind.COMMIT,
        source: OpSource = OpSource.PRODUCER,
        after: timedelta = timedelta(milliseconds=7),
        positions: Positions | None = None,
    ) -> Told:
        listed = told.positions if positions is None else positions
        entry = OpEntry(kind, told.id, TOPIC_ID, 0, listed, told.first, told.last)
        value, headers = encode_op([entry], source)
        time = told.halves[-1].time + after
        self.ops.append(Record(op_topic(source), 0, len(self.ops), None, value, headers, time))
        return told

    def deliver(self, told: Told, positions: Sequence[int] | None = None, late: str = "") -> list[Record]:
        made = []
        for control, half in zip(told.control, told.halves, strict=True):
            if positions is None or control.position in positions:
                headers = real_headers(control, [*_pairs(half.headers)], 0, half.offset)
                if late:
                    headers.append((LATE_HEADER, late.encode()))
                made.append(self.real(control.topic, half.key, half.value, headers, half.time))
        return made

    def real(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, half_time: datetime) -> Record:
        offset = sum(record.topic == topic for record in self.reals)
        record = Record(topic, 0, offset, key, value, headers, half_time + timedelta(milliseconds=12))
        self.reals.append(record)
        return record

    def change(self, record: Record, **fields: Any) -> None:
        self.reals[self.reals.index(record)] = replace(record, **fields)

    def swap(self, one: Record, other: Record) -> None:
        self.change(one, offset=-1)
        self.change(other, offset=one.offset)
        self.change(replace(one, offset=-1), offset=other.offset)

    def park(self, told: Told, reason: DiscardReason = DiscardReason.UNDECIDED, *, removed: bool = False) -> Told:
        """Its manifest in the discard topic, and the tombstone that removes it."""
        control = told.control[0]
        offsets = tuple((one.position, half.offset) for one, half in zip(told.control, told.halves, strict=True))
        manifest = Manifest(
            told.id, control.service, control.truth, TOPIC_ID, 0, reason, "", None, told.positions, offsets, 0
        )
        for value in [manifest.encode(), None] if removed else [manifest.encode()]:
            at = len(self.discards)
            self.discards.append(Record("outbox.discard", 0, at, manifest_key(told.id), value, [], BEGIN))
        return told

    def delivered(self, messages: int = 1, **options: Any) -> Told:
        told = self.tell(messages, **options)
        if told.control[0].truth is Truth.ROW:
            self.row(told)
        self.op(told)
        self.deliver(told)
        return told

    def committed(self, messages: int = 1, **options: Any) -> Told:
        """One that committed, with its row and its op marker, of which nothing is visible."""
        return self.op(self.row(self.tell(messages, **options)))

    def rolled_back(self, messages: int = 1, *, by_checker: bool = False, **options: Any) -> Told:
        told = self.tell(messages, **options)
        if by_checker:
            self.row(told, "R")
        self.op(told, OpKind.ROLLBACK, OpSource.CHECKER if by_checker else OpSource.PRODUCER)
        return told

    def judged(
        self,
        *,
        grace: int = GRACE,
        services: tuple[str, ...] = ("*",),
        purged: int = 0,
        purged_until: int | None = None,
        incomplete: tuple[str, ...] = (),
        shortened: tuple[str, ...] = (),
        tables: MessageTables | None = None,
    ) -> list[Row]:
        database = Database("shop", services, INCARNATION, {0: purged}, purged_until, tables)
        known = Circumstances(grace, [database], self._services(), incomplete, shortened=shortened)
        return judge(evidence(*self._found()), known).collect()

    def differing(self, services: tuple[str, ...] = ("*",)) -> set[str]:
        """Ids of transactions of which a quick audit sees that something is wrong."""
        known = Circumstances(GRACE, [Database("shop", services, INCARNATION)], self._services())
        found = compare(*sides(self._found(), known), "transaction_id", "topic").where("differs").collect()
        return {row.transaction_id for row in found}

    def _services(self) -> set[str]:
        return {control.service for told in self.told for control in told.control}

    def _found(self) -> Found:
        window = dict.fromkeys((0, 1), (START, BEHIND))
        return Found(
            half_evidence(frame(self.halves), {0: [range(offset, offset + 1) for offset in sorted(self.unsettled)]}),
            table_evidence(session().createDataFrame(self.table_rows, TABLE_COLUMNS)),
            op_evidence(frame(self.ops), TOPIC_ID, window),
            row_evidence(session().createDataFrame(self.rows, COLUMNS), TOPIC_ID, window),
            real_evidence(frame(self.reals), window, {0: HALF_END}, BEGAN),
            discard_evidence(frame(self.discards), TOPIC_ID),
        )


def op_topic(source: OpSource) -> str:
    return "outbox.verdict" if source in RANKED else "outbox.op"


def frame(records: Sequence[Record]) -> DataFrame:
    return session().createDataFrame([record.row() for record in records], KAFKA_SCHEMA)


def _pairs(headers: Headers) -> list[tuple[str, bytes | None]]:
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]
