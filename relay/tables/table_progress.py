"""What became of the batch that a former owner of a table source left behind (R55). Pure.

Batches are numbered. The database names the batch in delivery and its rows; Kafka has the number of the last batch
that was committed, in the same Kafka transaction as its records. Each database transaction that names a batch also
deletes the one before. So the three numbers are never more than one apart.
"""

from __future__ import annotations

from typing import NamedTuple

from outbox._service.exit_codes import UnsafeError


class Progress(NamedTuple):
    """What the database holds about a table source.

    Args:
        incarnation: Identifies this row of the source table, so that progress of another one is recognised.
        batch: Number of the newest batch; 0: none yet.
        delivered: Number of the last batch that is known to be delivered; its rows are deleted.
        ids: Ids of the rows of the newest batch.
    """

    incarnation: str
    batch: int
    delivered: int
    ids: tuple[int, ...]


class Committed(NamedTuple):
    """What Kafka holds about a table source.

    Args:
        batch: Number of the last batch that was committed.
        incarnation: The incarnation whose batch that was.
    """

    batch: int
    incarnation: str


_HOW = "See docs/table_mode.md, section 'A source that stops', before it is served again."


def was_delivered(source: str, progress: Progress, committed: Committed | None) -> bool:
    """Return whether the newest batch was delivered. If it was not, its rows are read again.

    Args:
        source: Name of the source.
        progress: What the database holds.
        committed: What Kafka holds, after the former owner's Kafka transaction has ended; None: nothing.

    Raises:
        UnsafeError: The database or Kafka was set back, so that rows may be delivered twice or not at all.
    """
    if committed is None:
        if progress.batch == 0:
            return True
        raise UnsafeError(
            f"Table source {source}: Kafka has no progress, the database is at batch {progress.batch}. "
            f"The consumer group's offset was deleted or has expired. {_HOW}"
        )
    if committed.incarnation != progress.incarnation:
        raise UnsafeError(
            f"Table source {source}: the progress in Kafka belongs to another table ({committed.incarnation}, "
            f"not {progress.incarnation}). The table was recreated, or the name is used twice. {_HOW}"
        )
    if not progress.delivered <= committed.batch <= progress.batch <= progress.delivered + 1:
        raise UnsafeError(
            f"Table source {source}: Kafka is at batch {committed.batch}, the database at batch {progress.batch} "
            f"with {progress.delivered} delivered. The database or Kafka was restored to an earlier state. {_HOW}"
        )
    return committed.batch == progress.batch
