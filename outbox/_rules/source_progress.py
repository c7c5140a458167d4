"""The progress of a table source in its database and in Kafka, and whether the two fit (R55, R73). Pure.

Batches are numbered. The database names the batch in delivery and its rows; Kafka has the number of the last batch
that was committed, in the same Kafka transaction as its records. Each database transaction that names a batch also
deletes the one before. So the three numbers are never more than one apart.

Two copies of a database count alike. So a batch also has a nonce: an equal number with another nonce is the batch of
another copy, which is not in this database.
"""

from typing import Any, NamedTuple, Self

FIRST_NONCE = "00000000-0000-0000-0000-000000000000"
"""Of batch 0, which has no rows. Beside a higher number an operator has set it: the batch in Kafka is the own one."""


class Progress(NamedTuple):
    """What the database holds about a table source.

    Args:
        incarnation: Identifies this row of the source table, so that progress of another one is recognised.
        batch: Number of the newest batch; 0: none yet.
        delivered: Number of the last batch that is known to be delivered; its rows are deleted.
        ids: Ids of the rows of the newest batch.
        nonce: Of the newest batch.
        delivered_nonce: Of the last batch that is known to be delivered.
        transactions: Ids of the transactions of these rows, where ids of rows may be given out again.
        missing: How many of these rows are not in the table, where rows that are gone leave evidence.
        lost: Whether there is evidence of deliveries of which this progress has nothing.
    """

    incarnation: str
    batch: int
    delivered: int
    ids: tuple[int, ...]
    nonce: str = FIRST_NONCE
    delivered_nonce: str = FIRST_NONCE
    transactions: frozenset[str] = frozenset()
    missing: int = 0
    lost: bool = False

    @classmethod
    def read(cls, *values: Any) -> Self:
        found = cls(*values)
        return found._replace(ids=tuple(found.ids), transactions=frozenset(found.transactions))

    def settled(self) -> Self:
        """Return the progress after the newest batch was delivered and its rows are deleted."""
        return self._at(self.batch, self.nonce)

    def undone(self) -> Self:
        """Return the progress after the newest batch was not delivered: its rows are read again."""
        return self._at(self.delivered, self.delivered_nonce)

    def named(self, nonce: str, ids: tuple[int, ...]) -> Self:
        """Return the progress with the next batch named, by a nonce that no other has, and the newest settled."""
        return self.settled()._replace(batch=self.batch + 1, nonce=nonce, ids=ids)

    def _at(self, batch: int, nonce: str) -> Self:
        return self._replace(
            batch=batch,
            delivered=batch,
            ids=(),
            nonce=nonce,
            delivered_nonce=nonce,
            transactions=frozenset(),
            missing=0,
        )


class Committed(NamedTuple):
    """What Kafka holds about a table source: the number of the last committed batch, and whose it was."""

    batch: int
    incarnation: str
    nonce: str = FIRST_NONCE

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> Self:
        incarnation, _, nonce = (metadata or "").partition(" ")
        return cls(offset, incarnation, nonce)

    @property
    def metadata(self) -> str:
        return f"{self.incarnation} {self.nonce}"


def contradiction(progress: Progress, committed: Committed | None) -> str:
    """Return why a source must not be served; empty if the database fits what Kafka holds (None: nothing)."""
    if progress.lost:
        return (
            "its table outbox_source has lost its progress, although outbox_delivered has evidence of deliveries. The "
            "table was truncated, or its row deleted."
        )
    if committed is None:
        if progress.batch == 0:
            return ""
        return (
            f"Kafka has no progress, the database is at batch {progress.batch}. "
            "The consumer group's offset was deleted or has expired."
        )
    if is_foreign(progress, committed):
        return (
            f"the progress in Kafka belongs to another table ({committed.incarnation}; here {progress.incarnation}). "
            "The table was recreated, or the name is used twice."
        )
    if not _is_near(progress, committed):
        return (
            f"Kafka is at batch {committed.batch}, the database at batch {progress.batch} "
            f"with {progress.delivered} delivered. The database or Kafka was restored to an earlier state, or another "
            "copy of this database is delivered under the same name."
        )
    return _of_one_batch(progress, committed)


def _of_one_batch(progress: Progress, committed: Committed) -> str:
    """Return what contradicts where the numbers fit."""
    if is_of_a_copy(progress, committed):
        return (
            f"batch {committed.batch} in Kafka is not that of this database: another copy of this database is "
            "delivered under the same name, as a restored dump or a former primary. Both copies halt. Stop the relays "
            "of the copy that shall not be delivered, then resume the other one."
        )
    if (progress.missing or not progress.ids) and committed.batch != progress.delivered:
        there = len(progress.ids) - progress.missing
        return (
            f"{there} of {len(progress.ids)} rows of batch {progress.batch}, which Kafka has, are in the table. Rows "
            "were deleted by hand or truncated, or their ids were given out again, or row security hides them."
        )
    return ""


def is_foreign(progress: Progress, committed: Committed | None) -> bool:
    """Return whether Kafka holds the progress of another table under the same name."""
    return committed is not None and committed.incarnation != progress.incarnation


def is_of_a_copy(progress: Progress, committed: Committed) -> bool:
    """Return whether the batch in Kafka has a number of this database, and is not of it."""
    nonce = progress.nonce if committed.batch == progress.batch else progress.delivered_nonce
    if is_foreign(progress, committed) or not _is_near(progress, committed):
        return False
    return committed.nonce != nonce and (nonce != FIRST_NONCE or committed.batch == 0)


def _is_near(progress: Progress, committed: Committed) -> bool:
    return progress.delivered <= committed.batch <= progress.batch <= progress.delivered + 1
