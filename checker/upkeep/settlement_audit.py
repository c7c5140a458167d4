"""The settlement audit: committed rows that are old and not delivered are found and counted (R27)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, LiteralString

import psycopg

from checker.rules.settlement import LAST_ID, ChannelProgress, CommittedRow, Delay, between, places, why_undelivered
from checker.upkeep.pages import BY_KEY, database_ms, pages
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.discard import DiscardReason

PAGE = 5_000
"""Rows that one statement looks at."""

FRESH_SECONDS = 2.0
"""Maximum age of Kafka's state when rows are compared with it, unless they show that halves are gone."""

EXAMPLES = 5
"""Transactions that are named of each finding, the oldest ones."""

OPTIONS = BY_KEY

# What is below a checkpoint and not in the discard topic is delivered: the database need not hand it out.
_CANDIDATES: LiteralString = """
SELECT row.transaction_id::text, left(row.producer_group, 200), row.half_topic_id::text, row.half_partition,
       row.first_offset, row.last_offset, greatest(row.created_at, to_timestamp(0))
  FROM {transaction} AS row
  LEFT JOIN unnest(%(partitions)s::int[], %(below)s::bigint[]) AS settled (partition, below)
         ON row.half_partition = settled.partition
 WHERE row.transaction_id > %(after)s::uuid AND row.transaction_id <= %(to)s::uuid
   AND row.state = 'C' AND row.channel = %(channel)s
   AND row.created_at < to_timestamp(%(before_ms)s / 1000.0)
   AND (row.half_topic_id <> %(topic_id)s::uuid OR settled.below IS NULL OR row.last_offset >= settled.below
        OR row.transaction_id = ANY (%(discarded)s::uuid[])
        OR EXISTS (SELECT FROM unnest(%(malformed_partitions)s::int[], %(malformed_offsets)s::bigint[])
                     AS half (partition, at)
                    WHERE half.partition = row.half_partition AND half.at IN (row.first_offset, row.last_offset)))
 ORDER BY row.transaction_id
"""


_CONTRADICTED: LiteralString = """
SELECT row.transaction_id::text, left(row.producer_group, 200), row.half_topic_id::text, row.half_partition,
       row.first_offset, row.last_offset, greatest(row.created_at, to_timestamp(0))
  FROM {transaction} AS row
 WHERE row.transaction_id = ANY (%(ids)s::uuid[])
   AND row.state = 'C' AND row.channel = %(channel)s
   AND row.created_at < to_timestamp(%(before_ms)s / 1000.0)
 ORDER BY row.transaction_id
"""


@dataclass(slots=True)
class Undelivered:
    """Committed transactions of one producer group that are not delivered, for one reason.

    Args:
        detail: More of it: the reason in the discard topic, or the half topic's id and partition.
        oldest: When the oldest row was inserted, by the database's clock.
        examples: Ids of the oldest ones.
    """

    group: str
    delay: Delay
    detail: str
    count: int
    oldest: datetime
    examples: list[str]


class Audit:
    """Settlement audit of the callback table of one database.

    Args:
        max_age: Younger rows are not looked at, ms.
    """

    def __init__(
        self,
        table: CallbackTable,
        channel: str,
        max_age: int,
        read: Callable[[], ChannelProgress],
        rolled_back: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._table = table
        self._channel = channel
        self._max_age = max_age
        self._read = read
        self._rolled_back = rolled_back

    def run(self, connection: psycopg.Connection[Any], progress: ChannelProgress) -> list[Undelivered]:
        """Walk once over all rows that are old enough.

        Args:
            connection: In autocommit, with `OPTIONS`.
        """
        before_ms = database_ms(connection) - self._max_age
        found: dict[tuple[str, Delay, str], Undelivered] = {}
        fixed, looked = {"channel": self._channel, "before_ms": before_ms}, time.monotonic()
        discarded = sorted(progress.discarded)
        for after, to in pages(connection, self._table, LAST_ID, PAGE):  # an id's clock may be ahead, a row's is ours
            query = self._table.compose(_CANDIDATES)
            rows = connection.execute(query, {**fixed, **_page(progress, discarded, after, to)}).fetchall()
            delays = {why_undelivered(CommittedRow(*row[:-1]), progress) for row in rows}
            if Delay.GONE in delays or (rows and time.monotonic() > looked + FRESH_SECONDS):
                progress, looked = self._read(), time.monotonic()  # a row may be of after the last look
                discarded = sorted(progress.discarded)
            _count(found, rows, partial(why_undelivered, progress=progress), progress)
        self._count_contradicted(connection, found, fixed, progress)
        return sorted(found.values(), key=lambda one: (one.group, one.delay, one.detail))

    def _count_contradicted(
        self,
        connection: psycopg.Connection[Any],
        found: dict[tuple[str, Delay, str], Undelivered],
        fixed: Mapping[str, Any],
        progress: ChannelProgress,
    ) -> None:
        """Count committed rows that are settled despite a ROLLBACK op marker (R42)."""
        ids, query = self._rolled_back(), self._table.compose(_CONTRADICTED)
        for start in range(0, len(ids), PAGE):
            rows = connection.execute(query, {**fixed, "ids": ids[start : start + PAGE]}).fetchall()
            _count(found, rows, partial(_why_contradicted, progress=progress), progress)


def _why_contradicted(row: CommittedRow, progress: ChannelProgress) -> Delay | None:
    """Return ROLLED_BACK for a row that is settled; what is not settled is found anyway, and may be looked up."""
    return Delay.ROLLED_BACK if row.last_offset >= 0 and why_undelivered(row, progress) is None else None


def _page(progress: ChannelProgress, discarded: Sequence[str], after: str, to: str) -> Mapping[str, Any]:
    checkpoints = {number: partition.checkpoint for number, partition in progress.partitions.items()}
    below = {number: checkpoint.offset for number, checkpoint in checkpoints.items() if checkpoint is not None}
    return {
        "after": after,
        "to": to,
        "topic_id": progress.topic_id,
        "partitions": list(below),
        "below": list(below.values()),
        "discarded": list(between(discarded, after, to)),
        **places(progress.malformed),
    }


def _count(
    found: dict[tuple[str, Delay, str], Undelivered],
    rows: Iterable[tuple[Any, ...]],
    judge: Callable[[CommittedRow], Delay | None],
    progress: ChannelProgress,
) -> None:
    for *fields, created_at in rows:
        row = CommittedRow(*fields)
        delay = judge(row)
        if delay is None:
            continue
        detail = _detail(row, delay, progress)
        one = found.setdefault((row.group, delay, detail), Undelivered(row.group, delay, detail, 0, created_at, []))
        one.count += 1
        one.oldest = min(one.oldest, created_at)
        if len(one.examples) < EXAMPLES:
            one.examples.append(row.transaction_id)


def _detail(row: CommittedRow, delay: Delay, progress: ChannelProgress) -> str:
    if delay is Delay.DISCARDED:
        return progress.discarded.get(row.transaction_id, str(DiscardReason.MALFORMED))
    if delay is Delay.DELETED_TOPIC:
        return f"topic id {row.topic_id}"
    return f"half partition {row.partition}"
