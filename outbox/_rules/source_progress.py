"""The progress of a table source in its database and in Kafka, and whether the two fit (R55). Pure.

Batches are numbered. The database names the batch in delivery and its rows; Kafka has the number of the last batch
that was committed, in the same Kafka transaction as its records. Each database transaction that names a batch also
deletes the one before. So the three numbers are never more than one apart.
"""

from __future__ import annotations

from typing import NamedTuple


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


def contradiction(progress: Progress, committed: Committed | None) -> str:
    """Return why a source must not be served; empty if the numbers fit.

    Args:
        progress: What the database holds.
        committed: What Kafka holds; None: nothing.
    """
    if committed is None:
        if progress.batch == 0:
            return ""
        return (
            f"Kafka has no progress, the database is at batch {progress.batch}. "
            "The consumer group's offset was deleted or has expired."
        )
    if is_foreign(progress, committed):
        return (
            f"the progress in Kafka belongs to another table ({committed.incarnation}, not {progress.incarnation}). "
            "The table was recreated, or the name is used twice."
        )
    if not progress.delivered <= committed.batch <= progress.batch <= progress.delivered + 1:
        return (
            f"Kafka is at batch {committed.batch}, the database at batch {progress.batch} "
            f"with {progress.delivered} delivered. The database or Kafka was restored to an earlier state."
        )
    return ""


def is_foreign(progress: Progress, committed: Committed | None) -> bool:
    """Return whether Kafka holds the progress of another table under the same name."""
    return committed is not None and committed.incarnation != progress.incarnation
