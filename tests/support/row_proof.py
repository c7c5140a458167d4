"""A proof for a message table: what its writers committed, row by row, against topics, evidence and a live reader."""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg

from examples.flights.digest import digest
from outbox._postgres.message_table import MessageTable
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create
from tests.support.row_statements import DELIVERED, DISCARDED, WAITING
from tests.torture.evidence import ID_HEADER, DeliveredRow, DiscardedRow, Evidence, Told
from tests.torture.invariants import Violation, all_or_none, check
from tests.torture.log import Reader, read_to_end, seen

TOPICS = ("a", "b")
PARTITIONS = 3
KEYS = 30

SIZES = (1, 1, 2, 3, 5, 12)
"""Keys of a transaction; each has a message on one topic or on both."""

LARGE = 0.005
"""Share of transactions with some hundred messages, which are more than a batch takes."""

ROLLED_BACK = 0.1

_NUMBERS = (
    "INSERT INTO {name}_key AS k SELECT key, %s FROM unnest(CAST(%s AS text[])) AS given (key)"
    " ON CONFLICT (key) DO UPDATE SET number = k.number + %s RETURNING key, number"
)
_TOLD: LiteralString = (
    "WITH given AS (SELECT * FROM unnest(CAST(%s AS text[]), CAST(%s AS text[]), CAST(%s AS text[]),"
    " CAST(%s AS text[]), CAST(%s AS text[])) WITH ORDINALITY AS g (told, topic, key, value, digest, place)),"
    " made AS (INSERT INTO {message} (service, topic, key, value, header_names, header_values)"
    " SELECT 'orders', topic, convert_to(key, 'UTF8'), convert_to(value, 'UTF8'), ARRAY['" + ID_HEADER + "'],"
    " ARRAY[convert_to(told, 'UTF8')] FROM given ORDER BY place RETURNING *)"
    " SELECT convert_from(header_values[1], 'UTF8'), {transaction_id} || '/' || id FROM made"
)
_KEEP = (
    "INSERT INTO {name}_told SELECT * FROM"
    " unnest(CAST(%s AS text[]), CAST(%s AS text[]), CAST(%s AS text[]), CAST(%s AS text[]))"
)
_SPLIT: LiteralString = (
    "SELECT CAST(xid AS text) FROM {delivered} AS b, {rows} GROUP BY xid HAVING count(DISTINCT batch) > 1"
)


class RowProof:
    """Writers of two topics, a reader that is always there, and the reconciliation of the two."""

    def __init__(self, site: Site, seed: int, threads: int = 3) -> None:
        self.site = site  # its channel, its message table and its topics are created here
        self.table = MessageTable(site.tables)
        self.topics = [site.topic(name) for name in TOPICS]
        self.places = [(topic, number) for topic in self.topics for number in range(PARTITIONS)]
        self.reader = Reader(site.bootstrap_servers, self.places)
        self.written = 0
        self._acknowledged: set[str] = set()
        self._may = 0
        self._ends = False
        self._change = threading.Condition()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(f"{seed}/{n}"),)) for n in range(threads)
        ]

    def let_write(self, rows: int) -> None:
        """Let the writers commit at least so many rows more; return at once."""
        with self._change:
            self._may += rows
            self._change.notify_all()

    def _write(self, chance: random.Random) -> None:
        try:
            with psycopg.connect(self.site.postgres_url) as connection:
                while self._next():
                    self._transaction(connection, chance)
        except BaseException as error:  # noqa: BLE001 - `prove()` raises it
            self._failure = error

    def _next(self) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._ends or self.written < self._may)
            return not self._ends

    def _transaction(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        keys = KEYS if chance.random() < LARGE else chance.choice(SIZES)
        each = 8 if keys == KEYS else 1
        numbers = connection.execute(
            _NUMBERS.format(name=self.site.name).encode(),
            (each, sorted(chance.sample([f"key{n:02}" for n in range(KEYS)], keys)), each),
        ).fetchall()
        own = str(uuid.uuid4())
        messages = [
            (topic, key, json.dumps({"departure": number}))
            for key, last in numbers
            for number in range(last - each + 1, last + 1)
            for topic in chance.sample(self.topics, chance.choice([1, 1, 2]))
        ]
        self._insert(connection, own, messages)
        if chance.random() < ROLLED_BACK:
            connection.rollback()
            return
        connection.commit()
        with self._change:
            self.written += len(messages)
            self._acknowledged.add(own)

    def _insert(self, connection: psycopg.Connection[Any], own: str, messages: Sequence[tuple[str, str, str]]) -> None:
        ids = [f"{own}/{place}" for place in range(len(messages))]
        topics, keys, values = (list(parts) for parts in zip(*messages, strict=True))
        given = zip(ids, keys, values, strict=True)
        digests = [digest(key.encode(), value.encode(), [(ID_HEADER, id_.encode())]) for id_, key, value in given]
        made = dict(connection.execute(self.table.compose(_TOLD), (ids, topics, keys, values, digests)).fetchall())
        connection.execute(
            _KEEP.format(name=self.site.name).encode(), (ids, [made[id_] for id_ in ids], topics, digests)
        )

    def visible(self) -> int:
        return len(self.reader.seen_from(0))

    def assert_whole(self) -> None:
        """Check that each visible transaction is visible whole. No relay may run, and no Kafka transaction be open."""
        _, ends = read_to_end(self.site.bootstrap_servers, dict.fromkeys(self.places, 0))
        wait_until(lambda: self.reader.has_reached(ends))
        partly = list(all_or_none(Evidence(told=self._told(), log=self.reader.seen_from(0))))
        assert not partly, partly[:5]

    def wait_empty(self, timeout: float = 300.0) -> None:
        """Wait until all that may be written is written, and the message table is empty."""
        wait_until(lambda: self.written >= self._may, 300)
        wait_until(lambda: not self._rows_of(WAITING), timeout, self.site.logs)

    def violations(self) -> list[Violation]:
        """Return what contradicts the invariants of the torture; the message table is empty."""
        if self._failure is not None:
            raise RuntimeError("a writer has failed") from self._failure
        records, ends = read_to_end(self.site.bootstrap_servers, dict.fromkeys(self.places, 0))
        wait_until(lambda: self.reader.has_reached(ends))
        evidence = Evidence(
            told=self._told(),
            acknowledged=self._acknowledged,
            log=[seen(record) for record in records],
            reader=self.reader.seen_from(0),
            delivered=[DeliveredRow(*row) for row in self._rows_of(DELIVERED)],
            discarded=[DiscardedRow(*row) for row in self._rows_of(DISCARDED)],
            waiting=[id_ for (id_,) in self._rows_of(WAITING)],
            partitions=dict.fromkeys(self.topics, PARTITIONS),
        )
        split = [Violation("I5", f"transaction {xid} was in several batches") for (xid,) in self._rows_of(_SPLIT)]
        assert self.written == len(evidence.told) == len(evidence.delivered) == len(evidence.log)
        return check(evidence) + split

    def _told(self) -> dict[str, Told]:
        rows = self.site.sql(f"SELECT * FROM {self.site.name}_told")
        return {id_: Told(topic, hash_, "table", message_id) for id_, message_id, topic, hash_ in rows}

    def _rows_of(self, query: LiteralString) -> list[Any]:
        return self.site.sql(self.table.compose(query))

    @classmethod
    @contextmanager
    def running(cls, site: Site, seed: int) -> Iterator[RowProof]:
        """Create everything, start writers and reader, and end them at the end."""
        site.create(*TOPICS, partitions=1)
        proof = cls(site, seed)
        create(site)
        columns = "id text PRIMARY KEY, message_id text NOT NULL, topic text NOT NULL, digest text NOT NULL"
        site.sql(f"CREATE TABLE {site.name}_told ({columns})")
        proof.reader.start()
        for thread in proof._threads:
            thread.start()
        try:
            yield proof
        finally:
            proof._end()

    def _end(self) -> None:
        with self._change:
            self._ends = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        self.reader.end()
