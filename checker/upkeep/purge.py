"""The purge: deletes rows of settled transactions, and old rollback rows, in small transactions with pauses.

A row goes when its transaction is settled and old, never by age alone (R11): see `checker.rules.settlement`. The purge
watermark goes up in the transaction that deletes, so that "no row" below it is never taken for "rolled back".

A rollback row goes by age alone. If its transaction were asked about once more, a new rollback row would give the same
answer; so rollback rows do not raise the watermark. What the old one still forbids is that a local transaction commits
which was open when it was fenced, and none is after a month.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from checker.rules.settlement import ChannelProgress, Old, between, first_id_of, places, settled_below, time_of
from checker.upkeep.pages import BY_KEY, database_ms, pages
from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable

BATCH = 2_000
"""Rows that are looked at, and deleted at most, in one transaction."""

PACE = 4.0
"""A pause is four times as long as the transaction before it: at most a fifth of one processor is taken."""

OPTIONS = f"{BY_KEY} -c lock_timeout=1s -c synchronous_commit=off"
"""Server settings of the purge's connection. A delete that a crash undoes comes back with its watermark: no harm."""

_LOCK: LiteralString = "SELECT pg_try_advisory_xact_lock(%s, %s)"  # two numbers: no transaction's lock, which is one
_DELETE_COMMITTED: LiteralString = """
WITH gone AS (
    DELETE FROM {transaction} AS row
     USING unnest(%(partitions)s::int[], %(below)s::bigint[]) AS settled (partition, below)
     WHERE row.transaction_id > %(after)s::uuid AND row.transaction_id <= %(to)s::uuid
       AND row.state = 'C' AND row.channel = %(channel)s AND row.half_topic_id = %(topic_id)s::uuid
       AND row.half_partition = settled.partition AND row.last_offset < settled.below
       AND row.created_at < to_timestamp(%(before_ms)s / 1000.0)
       AND row.transaction_id <> ALL (%(kept)s::uuid[])
       AND NOT EXISTS (SELECT FROM unnest(%(malformed_partitions)s::int[], %(malformed_offsets)s::bigint[])
                         AS half (partition, at)
                        WHERE half.partition = row.half_partition AND half.at IN (row.first_offset, row.last_offset))
 RETURNING row.half_partition, row.last_offset, row.created_at, row.transaction_id
)
SELECT half_partition, count(*), max(last_offset),
       (extract(epoch FROM greatest(max(created_at), to_timestamp(0))) * 1000)::bigint,
       (array_agg(transaction_id ORDER BY transaction_id DESC))[1]::text
  FROM gone GROUP BY half_partition
"""
_RAISE_WATERMARKS: LiteralString = """
INSERT INTO {meta} AS known (key, value)
SELECT raised.key, raised.value::text FROM unnest(%s::text[], %s::bigint[]) AS raised (key, value)
ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value WHERE known.value::bigint < EXCLUDED.value::bigint
"""
_DELETE_ROLLBACK_ROWS: LiteralString = """
DELETE FROM {transaction}
 WHERE transaction_id > %(after)s::uuid AND transaction_id <= %(to)s::uuid
   AND state = 'R' AND channel = %(channel)s AND created_at < to_timestamp(%(before_ms)s / 1000.0)
"""

Purged = Counter[str]
"""Rows deleted, by state."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Rows of one half topic that may be purged.

    Args:
        below: By half partition the offset below which all is settled.
        kept: Transactions in the discard topic, whose rows are kept; sorted by id.
        malformed: Half partition and offset of the discarded halves without a known transaction id.
    """

    channel: str
    topic_id: str
    below: Mapping[int, int]
    kept: Sequence[str] = ()
    malformed: Collection[tuple[int, int]] = ()


def what_may_go(channel: str, progress: ChannelProgress) -> Settled:
    """Return which rows of a channel's present half topic may be purged."""
    kept = sorted(progress.discarded)
    return Settled(channel, progress.topic_id, settled_below(progress), kept, progress.malformed)


class Purge:
    """Purges the callback table of one database.

    Args:
        pace: A pause is so many times as long as the transaction before it.
    """

    def __init__(self, table: CallbackTable, stop: threading.Event, pace: float = PACE) -> None:
        self._table = table
        self._stop = stop
        self._pace = pace

    def run(
        self, connection: psycopg.Connection[Any], settled: Settled, old: Old, on_batch: Callable[[Purged], object]
    ) -> bool:
        """Walk once over all rows that are old enough, and delete what may go.

        Args:
            connection: In autocommit, to a writable primary, with `OPTIONS`.
            settled: What may go; that it is of a while ago does no harm.

        Returns:
            Whether the walk was completed: no other process purges this table, and no stop was requested.

        Raises:
            psycopg.Error: The database does not answer, or refuses; reported batches are deleted.
        """
        for after, to in pages(connection, self._table, old.before, BATCH):
            began = time.monotonic()
            purged = self._delete(connection, settled, old, after, to)
            if purged is None:
                return False
            on_batch(purged)
            if self._stop.wait((time.monotonic() - began) * self._pace):
                return False
        return True

    def _delete(
        self, connection: psycopg.Connection[Any], settled: Settled, old: Old, after: str, to: str
    ) -> Purged | None:
        """Delete the purgeable rows of a page; return None if another process purges this table."""
        page = {"after": after, "to": to, "channel": settled.channel}
        with connection.transaction():
            if connection.execute(_LOCK, self._lock(settled.channel)).fetchone() != (True,):
                return None
            purged = Purged(
                C=self._delete_committed(connection, settled, {**page, "before_ms": old.committed_ms}),
                R=self._delete_rollback_rows(connection, after, {**page, "before_ms": old.rollback_rows_ms}),
            )
            failpoint("checker.purging")
        return purged

    def _delete_committed(self, connection: psycopg.Connection[Any], settled: Settled, page: Mapping[str, Any]) -> int:
        what = {
            "topic_id": settled.topic_id,
            "partitions": list(settled.below),
            "below": list(settled.below.values()),
            "kept": list(between(settled.kept, page["after"], page["to"])),
            **places(settled.malformed),
        }
        gone = connection.execute(self._table.compose(_DELETE_COMMITTED), {**page, **what}).fetchall()
        if gone:
            marks = {f"purged/{settled.topic_id}/{partition}": last + 1 for partition, _, last, _, _ in gone}
            newest = max(max(created_ms, time_of(id_)) for *_, created_ms, id_ in gone)
            marks["purged_until"] = min(newest, database_ms(connection))
            connection.execute(self._table.compose(_RAISE_WATERMARKS), (list(marks), list(marks.values())))
        return sum(int(count) for _, count, *_ in gone)

    def _delete_rollback_rows(self, connection: psycopg.Connection[Any], after: str, page: Mapping[str, Any]) -> int:
        if after >= first_id_of(page["before_ms"]):
            return 0
        return connection.execute(self._table.compose(_DELETE_ROLLBACK_ROWS), page).rowcount

    def _lock(self, channel: str) -> tuple[int, int]:
        """Return the keys of the purge's advisory lock: two purges at once would only block each other."""
        names = self._table.names
        return _number("outbox purge"), _number(f"{names.schema}.{names.transaction}/{channel}")


def _number(text: str) -> int:
    """Return the CRC-32 of a text as a signed number."""
    return int.from_bytes(zlib.crc32(text.encode()).to_bytes(4), signed=True)
