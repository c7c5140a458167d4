"""The look at a database where the checker may not write: rows decide, and their absence is UNKNOWN.

A replica will do: what it shows was committed, and flushed by the primary before it was sent. What it does not show
may come. On a primary a row may be visible before it is flushed, and the durability write (R9) is not possible; the
position up to which the server has flushed its log proves the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from checker.durable import roll_back
from checker.fencing.row_lookup import RowLookup, foreign
from checker.rules.verdicts import Answers, Row, Verdict, of_row
from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest

FLUSH_SECONDS = 1.0
"""Postgres flushes what was committed asynchronously within 0.6 s (three times wal_writer_delay)."""

SEEN = 10_000
"""Rows that are remembered until they are known to be flushed."""

_BEGIN: LiteralString = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BELOW: LiteralString = """
SELECT asked.id::text
  FROM unnest(%s::uuid[], %s::uuid[], %s::int[], %s::bigint[]) AS asked (id, topic_id, partition, last)
  JOIN {meta} ON key = 'purged/' || asked.topic_id || '/' || asked.partition
             AND CASE WHEN key LIKE 'purged/%%' THEN value::bigint > asked.last END
"""
_LOG: LiteralString = (
    "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, (pg_current_wal_flush_lsn() - '0/0')::bigint"
    " WHERE NOT pg_is_in_recovery()"
)


class ReadOnlyFence:
    """Asks one database without writing to it."""

    def __init__(self, table: CallbackTable) -> None:
        self._table = table
        self._seen: dict[str, int] = {}

    def check(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> Answers:
        """Return the verdicts of rows.

        Args:
            connection: In autocommit, to a primary or a replica.
            requests: Of groups of this database; one per transaction.

        Returns:
            Verdict and row by transaction id.
        """
        try:
            connection.execute(_BEGIN)
            look = RowLookup.at(connection, self._table, [request.transaction_id for request in requests])
            below = connection.execute(self._table.compose(_BELOW), _places(requests)).fetchall()
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise
        answers = _answers(requests, look, {id_ for (id_,) in below})
        committed = [id_ for id_, (verdict, _) in answers.items() if verdict is Verdict.COMMITTED]
        answers |= dict.fromkeys(self._not_flushed(connection, committed), (Verdict.IN_FLIGHT, None))
        failpoint("checker.decided")
        return answers

    def _not_flushed(self, connection: psycopg.Connection[Any], committed: Sequence[str]) -> list[str]:
        """Return those of the visible rows that may not be on the server's disk yet (R9).

        The end of the write-ahead log is stored when a row is first read: an open transaction may write more, which
        stays unflushed. Rows on a replica are on the primary's disk.
        """
        deadline = time.monotonic() + FLUSH_SECONDS
        while committed and (log := connection.execute(_LOG).fetchone()) is not None:
            written, flushed = log
            places = {id_: self._seen.setdefault(id_, written) for id_ in committed}
            waiting = [id_ for id_, place in places.items() if place > flushed]
            if not waiting or time.monotonic() > deadline:
                kept = [id_ for id_ in self._seen if id_ not in places or id_ in waiting][-SEEN:]
                self._seen = {id_: self._seen[id_] for id_ in kept}
                return waiting
            time.sleep(0.02)
        return []


def _answers(requests: Sequence[CheckRequest], look: RowLookup, below: set[str]) -> Answers:
    mismatched = foreign(requests, look.incarnation)
    answers: Answers = {}
    for request in requests:
        id_ = request.transaction_id
        row = look.rows.get(id_)
        answers[id_] = (
            (Verdict.MISMATCH, None)
            if id_ in mismatched
            else (_verdict(row, request.topic_id, purged=id_ in below), row)
        )
    return answers


def _verdict(row: Row | None, topic_id: str, *, purged: bool) -> Verdict:
    if row is not None:
        return of_row(row, topic_id)
    return Verdict.PURGED if purged else Verdict.UNKNOWN


def _places(requests: Sequence[CheckRequest]) -> tuple[list[Any], ...]:
    return (
        [request.transaction_id for request in requests],
        [request.topic_id for request in requests],
        [request.partition for request in requests],
        [request.last_offset for request in requests],
    )
