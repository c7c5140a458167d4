"""Gathers a round's evidence: from the database, from the topics, from those who watched."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, LiteralString, TypeVar

import psycopg
from confluent_kafka import Message

from outbox import HalfOutbox, Outbox
from outbox._postgres.message_table import MessageTable
from outbox.errors import UsageError
from outbox.protocol.discard import DiscardReason, Manifest, parse_manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import parse_half
from outbox.protocol.identifiers import xid_of
from outbox.protocol.op import OpKind, OpSource, parse_op
from outbox.transaction import Outcome
from tests.support.harness import wait_until
from tests.support.row_statements import DELIVERED, DISCARDED, WAITING
from tests.torture.diary import ANSWERED, COMMITTED, FAILED, Diary, Entry
from tests.torture.evidence import TOPICS, Answer, DeliveredRow, DiscardedRow, Evidence, HalfSeen, Told, transaction_of
from tests.torture.hostile.mark import strangers
from tests.torture.invariants import LEAVING
from tests.torture.log import Places, Reader, read_to_end, seen
from tests.torture.observers import Observers
from tests.torture.strangers import is_away
from tests.torture.world import PARTITIONS, REAL_PARTITIONS, World

T = TypeVar("T")

_MANIFEST = b"/manifest"
_FORGET: LiteralString = "WITH gone AS (DELETE FROM {delivered}) DELETE FROM {discarded}"
_STATUS: LiteralString = (
    "SELECT CASE WHEN asked.xid < pg_snapshot_xmax(pg_current_snapshot()) THEN pg_xact_status(asked.xid) END"
    " FROM (VALUES (CAST(CAST(%s AS text) AS xid8))) AS asked (xid)"
)
"""What Postgres says of an xid, as long as it was given out."""

_READER_SECONDS = 60.0


class Gathering:
    """Knows up to where the rounds before have looked, and what was answered about transactions with an error."""

    def __init__(self, world: World, reader: Reader, observers: Observers, diary: Diary) -> None:
        self.outcomes: Counter[str] = Counter()
        self._world = world
        self._reader = reader
        self._observers = observers
        self._diary = diary
        site = world.site
        self._outboxes: dict[str, HalfOutbox | Outbox] = {"half": site.half_outbox(), "table": site.outbox()}
        self._table = MessageTable(site.tables)
        channel = world.channel.channel
        internal = (channel.half_topic, channel.op_topic, channel.verdict_topic, channel.discard_topic)
        self._starts: Places = {(topic, number): 0 for topic in internal for number in range(PARTITIONS)}
        self._starts |= dict.fromkeys(world.places(), 0)
        self._alive: dict[str, Manifest] = {}
        self._early: list[str] = []
        self._compared = 0
        self._late_ends_accepted = 0

    def look_for_early_ones(self) -> None:
        """Compare what became visible since the last look with what is committed now."""
        new = [record.id for record in self._reader.seen_from(self._compared)]
        query = (
            f"SELECT id FROM unnest(%s::text[]) AS asked (id)"
            f" WHERE NOT EXISTS (SELECT FROM {self._world.site.name}_told AS told WHERE told.id = asked.id)"
        )
        try:
            with self._world.site.connect(connect_timeout=2) as connection:
                rows = connection.execute(query.encode(), (new,)).fetchall()
        except psycopg.Error as error:
            if not is_away(error):
                raise
            return  # the next look does it
        self._early += [id_ for (id_,) in rows]
        self._compared += len(new)

    def leaving(self) -> frozenset[DiscardReason]:
        """Reasons of what is in the discard topic and must leave it; looks from the last round's end on."""
        alive, _ = self._discards()
        return LEAVING & {manifest.reason for manifest in alive.values()}

    def waiting(self) -> list[str]:
        """Message ids of the first rows that wait in the message table now."""
        return [message_id for (message_id,) in self._rows_of(WAITING)]

    def gather(self, unsettled: list[str]) -> Evidence:
        """The evidence of a round that has healed; the next round begins."""
        servers = self._world.site.bootstrap_servers
        channel = self._world.channel.channel
        alive, manifests = self._discards()
        records, ends = read_to_end(servers, self._starts)
        real = {place: ends[place] for place in self._world.places()}
        wait_until(lambda: self._reader.has_reached(real), _READER_SECONDS, lambda: "the reader lags behind")
        self.look_for_early_ones()
        halves = [_half(record) for record in records if record.topic() == channel.half_topic]
        said = [
            parse_op(record.value(), _headers(record), verdict=record.topic() == channel.verdict_topic)
            for record in records
            if record.topic() in {channel.op_topic, channel.verdict_topic}
        ]
        ops = [op for _, entries in said for op in entries]
        checked = [op for source, entries in said if source is OpSource.CHECKER for op in entries]
        told, diary = self._told(), self._diary.take()
        names = {self._world.site.topic(name) for name in TOPICS}
        evidence = Evidence(
            told=told,
            acknowledged={entry.told for entry in diary if entry.kind == COMMITTED},
            answers=self._answers(diary, set(map(transaction_of, told))),
            log=[seen(record) for record in records if record.topic() in names],
            reader=self._reader.seen_from(0),
            early=self._early,
            halves=halves,
            ops=ops,
            fenced={op.transaction_id for op in checked if op.kind is OpKind.ROLLBACK},
            manifests=manifests,
            alive=alive,
            delivered=[DeliveredRow(*row) for row in self._rows_of(DELIVERED)],
            discarded=[DiscardedRow(*row) for row in self._rows_of(DISCARDED)],
            poison={id_ for (id_,) in self._world.site.sql(f"SELECT row_id FROM {self._world.site.name}_poison")},
            waiting=self.waiting(),
            unsettled=unsettled,
            claims={(str(number), offset): at for (number, offset), at in self._observers.checkpoints.claims.items()},
            partitions=dict.fromkeys(names, REAL_PARTITIONS),
            watched=[*self._observers.found(), *self._late_ends()],
            strangers=strangers(records),
        )
        ids = {half.transaction_id for half in halves} | {op.transaction_id for op in ops}
        evidence.rows = self._callback_rows((ids | evidence.half_transactions()) - {""})
        self._begin_anew(ends, alive)
        return evidence

    def _late_ends(self) -> list[tuple[str, str]]:
        """Late requests that the broker took for the end of another transaction: R17 is there to prevent that."""
        before, self._late_ends_accepted = self._late_ends_accepted, self._world.kafka.late["accepted"]
        return [("I5", "a late EndTxn ended the next transaction")] * (self._late_ends_accepted - before)

    def _begin_anew(self, ends: Places, alive: dict[str, Manifest]) -> None:
        self._starts, self._alive = ends, alive
        self._early, self._compared = [], 0
        self._reader.forget()
        self._observers.forget()
        self._world.site.sql(f"TRUNCATE {self._world.site.name}_told, {self._world.site.name}_poison")
        self._rows_of(_FORGET)

    def _discards(self) -> tuple[dict[str, Manifest], list[Manifest]]:
        """What lies in the discard topic now, and every manifest that came since the last round."""
        topic = self._world.channel.channel.discard_topic
        starts = {place: offset for place, offset in self._starts.items() if place[0] == topic}
        alive, manifests = dict(self._alive), []
        for record in read_to_end(self._world.site.bootstrap_servers, starts)[0]:
            key = record.key() or b""
            if not key.endswith(_MANIFEST):
                continue
            transaction_id = transaction_of(key.decode())
            if record.value() is None:
                alive.pop(transaction_id, None)
            else:
                alive[transaction_id] = parse_manifest(record.value())
                manifests.append(alive[transaction_id])
        return alive, manifests

    def _told(self) -> dict[str, Told]:
        rows = self._world.site.sql(f"SELECT id, topic, digest, mode, message_id FROM {self._world.site.name}_told")
        return {id_: Told(*told) for id_, *told in rows}

    def _callback_rows(self, ids: Iterable[str]) -> dict[str, str]:
        table = self._world.site.tables.transaction
        query = f"SELECT transaction_id::text, state FROM {table} WHERE transaction_id = ANY (%s::uuid[])"
        return dict(self._world.site.sql(query, list(ids)))

    def _answers(self, diary: Iterable[Entry], there: Collection[str]) -> list[Answer]:
        """What applications were answered, and what is answered now, about transactions; `there`: in the database."""
        answers = []
        for entry in diary:
            if entry.kind == ANSWERED:
                if entry.detail != Outcome.OPEN:
                    answers.append(Answer(entry.told, entry.transaction_id, entry.detail, "after its error"))
            elif entry.kind == FAILED:
                self.outcomes[f"transactions of mode {entry.mode} that ended with {entry.detail}"] += 1
                if entry.transaction_id:
                    answers.append(self._ask(entry, there))
        return answers

    def _ask(self, entry: Entry, there: Collection[str]) -> Answer:
        with self._world.site.connect() as connection:
            try:
                outcome = str(self._outboxes[entry.mode].outcome(entry.transaction_id, connection))
            except UsageError as error:
                outcome = f"refused ({error})"
            answer = outcome.partition(" (")[0]
            self.outcomes[f"outcome() of transactions of mode {entry.mode} that ended with an error: {answer}"] += 1
            xid = str(xid_of(entry.transaction_id))
            status = connection.execute(_STATUS, (xid,)).fetchone()
            if entry.mode == "table" and entry.told not in there and status == ("committed",):
                self.outcomes["xids that Postgres gave out again, and whose second transaction committed"] += 1
        return Answer(entry.told, entry.transaction_id, outcome, "asked in the end")

    def _rows_of(self, query: LiteralString) -> list[Any]:
        """The result of a statement on the message table, and what belongs to it."""
        return self._world.site.sql(self._table.compose(query))


def _half(record: Message) -> HalfSeen:
    control = _parsed(lambda: parse_half(_headers(record)))
    transaction_id = control.transaction_id if control else ""
    return HalfSeen(record.partition() or 0, record.offset() or 0, transaction_id)


def _headers(record: Message) -> Any:
    return tuple(record.headers() or ())


def _parsed(parse: Callable[[], T]) -> T | None:
    try:
        return parse()
    except ProtocolError:
        return None
