"""The fence's way into the callback table: rows that are there, and rollback rows where there are none.

A rollback row takes the unique key of a transaction, so that what did not commit yet no longer can. Who holds the key
without the advisory lock (an old client, SQL written by hand) is met here: the rollback row waits for that
transaction's end. Nothing shows whose row it is but the wait, so it is short, and the batch is halved.
"""

from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

import psycopg

from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable
from outbox._rules.callback_row import Row, read_row
from outbox.protocol.check import CheckRequest

_READ: LiteralString = (
    "SELECT transaction_id::text, state, half_topic_id::text, half_partition, first_offset, last_offset, positions"
    " FROM {transaction} WHERE transaction_id = ANY (%s::uuid[])"
)


def read_rows(connection: psycopg.Connection[Any], table: CallbackTable, ids: Sequence[str]) -> dict[str, Row]:
    """Return the rows of these transactions, read in a separate statement."""
    found = connection.execute(table.compose(_READ), (list(ids),)).fetchall() if ids else []
    return {id_: read_row(*columns) for id_, *columns in found}


def foreign(batch: Iterable[CheckRequest], incarnation: str | None) -> set[str]:
    """Transactions whose half names another incarnation, or none: a wrong or restored database never decides (R10)."""
    return {request.transaction_id for request in batch if incarnation is None or request.incarnation != incarnation}


PATIENCE = 150
"""Waits in one batch; what is left then counts as in flight."""

WAIT_MS = 10
"""Wait for one open transaction. A longer wait gains nothing: who is in flight is asked again."""

_LOCK_TIMEOUT: LiteralString = "SELECT set_config('lock_timeout', %s, true)"
_INSERT: LiteralString = """
INSERT INTO {transaction} (transaction_id, service, state, channel, half_topic_id, half_partition,
                           first_offset, last_offset, positions)
SELECT asked.id, asked.service, 'R', %s, asked.topic_id, asked.partition,
       asked.first, asked.last, asked.positions
  FROM unnest(%s::uuid[], %s::text[], %s::uuid[], %s::int[], %s::bigint[], %s::bigint[], %s::text[])
       AS asked (id, service, topic_id, partition, first, last, positions)
 WHERE asked.id = ANY (%s::uuid[])
    OR NOT EXISTS (SELECT FROM {meta} WHERE key = 'purged/' || asked.topic_id || '/' || asked.partition
                                        AND CASE WHEN key LIKE 'purged/%%' THEN value::bigint > asked.last END)
 ORDER BY asked.id
ON CONFLICT (transaction_id) DO NOTHING
RETURNING transaction_id::text
"""
_OVERTAKEN: LiteralString = """
SELECT count(*) FROM {transaction} AS fenced
  JOIN {meta} AS purged ON purged.key = 'purged/' || fenced.half_topic_id || '/' || fenced.half_partition
 WHERE fenced.transaction_id = ANY (%s::uuid[])
   AND CASE WHEN purged.key LIKE 'purged/%%' THEN purged.value::bigint > fenced.last_offset END
"""


class OvertakenError(psycopg.OperationalError):
    """A row may have been purged between lookup and rollback row: the rollback row would be wrong."""


def place_rollback_rows(
    connection: psycopg.Connection[Any],
    table: CallbackTable,
    channel: str,
    requests: Sequence[CheckRequest],
    *,
    in_discard_topic: bool = False,
) -> set[str]:
    """Insert rollback rows, in the present transaction, but below the purge watermark (R11).

    Args:
        connection: In a transaction that holds the advisory locks.
        in_discard_topic: Whether all are in the discard topic: their rows are never purged, whatever the watermark.

    Returns:
        The ids whose unique key is held by another transaction that is still open.

    Raises:
        OvertakenError: A purge came in between: nothing of the transaction may be committed.
    """
    held: set[str] = set()
    waiting = [requests] if requests else []
    waits = 0
    while waiting:
        some = waiting.pop()
        if waits < PATIENCE and _insert(connection, table, channel, some, in_discard_topic=in_discard_topic):
            continue
        waits += 1
        if len(some) == 1 or waits > PATIENCE:
            held.update(request.transaction_id for request in some)
        else:
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
    return held


def _insert(
    connection: psycopg.Connection[Any],
    table: CallbackTable,
    channel: str,
    requests: Sequence[CheckRequest],
    *,
    in_discard_topic: bool,
) -> bool:
    """Insert these rollback rows; return False if another transaction holds a key, and none was inserted.

    The INSERT waits for a purge that deletes the same row at this moment, and then takes it for one that was never
    there; but a second look sees the watermark of that purge.
    """
    known = [request.transaction_id for request in requests] if in_discard_topic else []
    connection.execute("SAVEPOINT rollback_rows")
    connection.execute(_LOCK_TIMEOUT, (f"{WAIT_MS}ms",))
    try:
        placed = connection.execute(table.compose(_INSERT), (channel, *_columns(requests), known))
        failpoint("checker.placed")
        connection.execute("RELEASE rollback_rows")
    except psycopg.errors.LockNotAvailable:
        connection.execute("ROLLBACK TO rollback_rows")
        return False
    if not in_discard_topic:
        _look_again(connection, table, [id_ for (id_,) in placed.fetchall()])
    return True


def _look_again(connection: psycopg.Connection[Any], table: CallbackTable, placed: Sequence[str]) -> None:
    """Verify that none of these rollback rows is below the current purge watermark."""
    if placed and connection.execute(table.compose(_OVERTAKEN), (list(placed),)).fetchone() != (0,):
        raise OvertakenError("a purge came between the look at its watermark and the rollback rows")


def _columns(requests: Sequence[CheckRequest]) -> tuple[list[Any], ...]:
    return (
        [request.transaction_id for request in requests],
        [request.service for request in requests],
        [request.topic_id for request in requests],
        [request.partition for request in requests],
        [request.first_offset for request in requests],
        [request.last_offset for request in requests],
        [str(request.positions) for request in requests],
    )
