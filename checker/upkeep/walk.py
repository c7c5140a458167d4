"""The walk over a callback table: rows that are settled and old are deleted, and what it leaves over is judged.

One predicate divides committed rows: settled is what is below the relay's checkpoint and not in the discard topic
(`checker.rules.settlement`). A settled row goes once it is old, never by age alone (R11). The purge watermark goes up
in the transaction that deletes, so that "no row" below it is never taken for "rolled back". A row that is not settled
and older than a delivery takes is a finding, with its reason (R27).

A rollback row goes by age alone. If its transaction were asked about once more, a new rollback row would give the same
answer; so rollback rows do not raise the watermark. What the old one still forbids is that a local transaction commits
which was open when it was fenced, and none is after a month.

The walk is in the order of the primary key, page by page, in small transactions: ids begin with their time.
"""

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import psycopg

from checker.connection import database_ms
from checker.rules.settlement import (
    FIRST_ID,
    LAST_ID,
    Ages,
    ChannelProgress,
    CommittedRow,
    Delay,
    Old,
    between,
    first_id_of,
    old_enough,
    places,
    settled_below,
    why_undelivered,
)
from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.discard import DiscardReason
from outbox.protocol.identifiers import created_ms

PAGE = 2_000
"""Rows that are looked at, and deleted at most, in one transaction."""

PACE = 4.0
"""A pause is four times as long as the deletion before it: at most a fifth of one processor is taken."""

FRESH_SECONDS = 2.0
"""Maximum age of Kafka's state when rows are compared with it, unless they show that halves are gone."""

EXAMPLES = 5
"""Transactions that are named of each finding, the oldest ones."""

OPTIONS = (
    "-c enable_seqscan=off -c plan_cache_mode=force_custom_plan -c lock_timeout=1s -c statement_timeout=10s"
    " -c synchronous_commit=off"
)
"""Server settings of a walk's connection.

A table whose statistics are old must not be read as a whole for each page. A delete that a crash undoes comes back with
its watermark: no harm.
"""

_LAST_OF_PAGE: LiteralString = (  # not as text inside: that would be what is sorted
    "SELECT (SELECT transaction_id FROM {transaction} WHERE transaction_id > %s::uuid AND transaction_id < %s::uuid"
    " ORDER BY transaction_id OFFSET %s LIMIT 1)::text"
)
_LOCK: LiteralString = "SELECT pg_try_advisory_xact_lock(%s, %s)"  # two numbers: no transaction's lock, which is one

_SETTLED: LiteralString = """(
           row.half_topic_id = %(topic_id)s::uuid AND row.last_offset < settled.below
       AND row.transaction_id <> ALL (%(discarded)s::uuid[])
       AND NOT EXISTS (SELECT FROM unnest(%(malformed_partitions)s::int[], %(malformed_offsets)s::bigint[])
                         AS half (partition, at)
                        WHERE half.partition = row.half_partition AND half.at IN (row.first_offset, row.last_offset)))
"""
_OLD_OF_PAGE: LiteralString = """
           row.transaction_id > %(after)s::uuid AND row.transaction_id <= %(to)s::uuid
       AND row.channel = %(channel)s AND row.created_at < to_timestamp(%(before_ms)s / 1000.0)
"""
_DELETE_SETTLED: LiteralString = f"""
WITH gone AS (
    DELETE FROM {{transaction}} AS row
     USING unnest(%(partitions)s::int[], %(below)s::bigint[]) AS settled (partition, below)
     WHERE {_OLD_OF_PAGE} AND row.state = 'C' AND row.half_partition = settled.partition AND {_SETTLED}
 RETURNING row.half_partition, row.last_offset, row.created_at, row.transaction_id
)
SELECT half_partition, count(*), max(last_offset),
       (extract(epoch FROM greatest(max(created_at), to_timestamp(0))) * 1000)::bigint,
       (array_agg(transaction_id ORDER BY transaction_id DESC))[1]::text
  FROM gone GROUP BY half_partition
"""  # noqa: S608 - constants only
_RAISE_WATERMARKS: LiteralString = """
INSERT INTO {meta} AS known (key, value)
SELECT raised.key, raised.value::text FROM unnest(%s::text[], %s::bigint[]) AS raised (key, value)
ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value WHERE known.value::bigint < EXCLUDED.value::bigint
"""
_DELETE_ROLLBACK_ROWS: LiteralString = f"DELETE FROM {{transaction}} AS row WHERE {_OLD_OF_PAGE} AND row.state = 'R'"  # noqa: S608

_COLUMNS: LiteralString = """
SELECT row.transaction_id::text, left(row.service, 200), row.half_topic_id::text, row.half_partition,
       row.first_offset, row.last_offset, greatest(row.created_at, to_timestamp(0))
  FROM {transaction} AS row
"""
_LEFT_OVER: LiteralString = f"""{_COLUMNS}
  LEFT JOIN unnest(%(partitions)s::int[], %(below)s::bigint[]) AS settled (partition, below)
         ON row.half_partition = settled.partition
 WHERE {_OLD_OF_PAGE} AND row.state = 'C' AND {_SETTLED} IS NOT TRUE
 ORDER BY row.transaction_id
"""
_CONTRADICTED: LiteralString = f"""{_COLUMNS}
 WHERE row.transaction_id = ANY (%(ids)s::uuid[])
   AND row.state = 'C' AND row.channel = %(channel)s
   AND row.created_at < to_timestamp(%(before_ms)s / 1000.0)
 ORDER BY row.transaction_id
"""

Purged = Counter[str]
"""Rows deleted, by state."""


@dataclass(slots=True)
class Undelivered:
    """Committed transactions of one service that are not delivered, for one reason.

    Args:
        detail: More of the reason: that in the discard topic, or the half topic's id and partition.
        oldest: When the oldest row was inserted, by the database's clock.
        examples: Ids of the oldest ones.
    """

    service: str
    delay: Delay
    detail: str
    count: int
    oldest: datetime
    examples: list[str]

    @property
    def which(self) -> tuple[str, Delay, str]:
        return self.service, self.delay, self.detail


class _Settled:
    """What is settled, as parameters of a page's statements."""

    def __init__(self, progress: ChannelProgress, channel: str) -> None:
        self.progress = progress
        self._discarded = sorted(progress.discarded)
        below = settled_below(progress)
        self._fixed = {
            "channel": channel,
            "topic_id": progress.topic_id,
            "partitions": list(below),
            "below": list(below.values()),
            **places(progress.malformed),
        }

    def page(self, after: str, to: str, before_ms: int) -> Mapping[str, Any]:
        """Return the parameters for rows of a page that were inserted before a moment."""
        discarded = list(between(self._discarded, after, to))
        return {**self._fixed, "after": after, "to": to, "before_ms": before_ms, "discarded": discarded}


class _Findings:
    """Committed rows that are not delivered, by service and reason."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Delay, str], Undelivered] = {}

    def count(
        self,
        rows: Iterable[tuple[Any, ...]],
        progress: ChannelProgress,
        judge: Callable[[CommittedRow, ChannelProgress], Delay | None],
    ) -> None:
        """Count those of some rows that a judge calls delayed; their last column is when they were inserted."""
        for *fields, created_at in rows:
            row = CommittedRow(*fields)
            delay = judge(row, progress)
            if delay is None:
                continue
            detail = _detail(row, delay, progress)
            new = Undelivered(row.service, delay, detail, 0, created_at, [])
            one = self._found.setdefault(new.which, new)
            one.count += 1
            one.oldest = min(one.oldest, created_at)
            if len(one.examples) < EXAMPLES:
                one.examples.append(row.transaction_id)

    def all(self) -> list[Undelivered]:
        return [self._found[key] for key in sorted(self._found)]


class Walk:
    """Walks over the callback table of one database.

    Args:
        ages: From which age on rows go, or are findings.
        purges: False: nothing is deleted.
        pace: Length of a pause, in lengths of the deletion before it.
    """

    def __init__(
        self,
        table: CallbackTable,
        channel: str,
        ages: Ages,
        read: Callable[[], ChannelProgress],
        rolled_back: Callable[[], Sequence[str]] = tuple,
        *,
        purges: bool = True,
        stop: threading.Event | None = None,
        pace: float = PACE,
    ) -> None:
        self._table = table
        self._channel = channel
        self._ages = ages
        self._read = read
        self._rolled_back = rolled_back
        self._purges = purges
        self._stop = stop or threading.Event()
        self._pace = pace

    def run(
        self, connection: psycopg.Connection[Any], progress: ChannelProgress, on_purged: Callable[[Purged], object]
    ) -> list[Undelivered] | None:
        """Walk once over all rows; return what is not delivered, or None if a stop was requested before the end.

        The connection is in autocommit, to a writable primary, with `OPTIONS`; `on_purged` is called after each
        transaction that deleted. After an error of psycopg what was reported is deleted.
        """
        old, found = old_enough(database_ms(connection), self._ages), _Findings()
        settled, looked, purges = _Settled(progress, self._channel), time.monotonic(), self._purges
        for after, to in self._pages(connection):  # to the last id: an id's clock may be ahead, a row's is ours
            if purges and after < old.before:
                began = time.monotonic()
                purged = self._delete(connection, settled, old, after, min(to, old.before))
                purges = purged is not None
                on_purged(purged or Purged())
                self._stop.wait((time.monotonic() - began) * self._pace)
                if purged is not None and purged.total() == PAGE:
                    continue
            if self._stop.is_set():
                return None
            rows = self._rows(connection, _LEFT_OVER, settled.page(after, to, old.undelivered_ms))
            delays = {why_undelivered(CommittedRow(*row[:-1]), settled.progress) for row in rows}
            if Delay.GONE in delays or (rows and time.monotonic() > looked + FRESH_SECONDS):
                settled, looked = _Settled(self._read(), self._channel), time.monotonic()  # rows may be newer
            found.count(rows, settled.progress, why_undelivered)
        self._count_contradicted(connection, found, settled.progress, old)
        return found.all()

    def _pages(self, connection: psycopg.Connection[Any]) -> Iterator[tuple[str, str]]:
        """Yield the pages of the table, each as the id before it and its last one."""
        query, after = self._table.compose(_LAST_OF_PAGE), FIRST_ID
        while after < LAST_ID:
            ((last,),) = connection.execute(query, (after, LAST_ID, PAGE - 1)).fetchall()
            yield after, last or LAST_ID
            after = last or LAST_ID

    def _rows(
        self, connection: psycopg.Connection[Any], query: LiteralString, parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        return connection.execute(self._table.compose(query), parameters).fetchall()

    def _delete(
        self, connection: psycopg.Connection[Any], settled: _Settled, old: Old, after: str, to: str
    ) -> Purged | None:
        """Delete what may go of a page; return None if another process purges this table."""
        with connection.transaction():
            if connection.execute(_LOCK, self._lock()).fetchone() != (True,):
                return None
            purged = Purged(C=self._delete_settled(connection, settled, settled.page(after, to, old.committed_ms)))
            if after < first_id_of(old.rollback_rows_ms):
                page = settled.page(after, to, old.rollback_rows_ms)
                purged["R"] = connection.execute(self._table.compose(_DELETE_ROLLBACK_ROWS), page).rowcount
            failpoint("checker.purging")
        return purged

    def _delete_settled(self, connection: psycopg.Connection[Any], settled: _Settled, page: Mapping[str, Any]) -> int:
        gone = self._rows(connection, _DELETE_SETTLED, page)
        if gone:
            topic_id = settled.progress.topic_id
            marks = {f"purged/{topic_id}/{partition}": last + 1 for partition, _, last, _, _ in gone}
            newest = max(max(inserted_ms, created_ms(id_)) for *_, inserted_ms, id_ in gone)
            marks["purged_until"] = min(newest, database_ms(connection))
            connection.execute(self._table.compose(_RAISE_WATERMARKS), (list(marks), list(marks.values())))
        return sum(int(count) for _, count, *_ in gone)

    def _lock(self) -> tuple[int, int]:
        """Return the keys of the purge's advisory lock: two purges at once would only block each other."""
        names = self._table.names
        return _number("outbox purge"), _number(f"{names.schema}.{names.transaction}/{self._channel}")

    def _count_contradicted(
        self, connection: psycopg.Connection[Any], found: _Findings, progress: ChannelProgress, old: Old
    ) -> None:
        """Count committed rows that are settled despite a ROLLBACK op marker (R42)."""
        ids, fixed = self._rolled_back(), {"channel": self._channel, "before_ms": old.undelivered_ms}
        for start in range(0, len(ids), PAGE):
            rows = self._rows(connection, _CONTRADICTED, {**fixed, "ids": ids[start : start + PAGE]})
            found.count(rows, progress, _why_contradicted)


def _why_contradicted(row: CommittedRow, progress: ChannelProgress) -> Delay | None:
    """Return ROLLED_BACK for a row that is settled; what is not settled is found anyway, and may be looked up."""
    return Delay.ROLLED_BACK if row.last_offset >= 0 and why_undelivered(row, progress) is None else None


def _detail(row: CommittedRow, delay: Delay, progress: ChannelProgress) -> str:
    if delay is Delay.DISCARDED:
        return progress.discarded.get(row.transaction_id, str(DiscardReason.MALFORMED))
    if delay is Delay.DELETED_TOPIC:
        return f"topic id {row.topic_id}"
    return f"half partition {row.partition}"


def _number(text: str) -> int:
    """Return the CRC-32 of a text as a signed number."""
    return int.from_bytes(zlib.crc32(text.encode()).to_bytes(4), signed=True)
