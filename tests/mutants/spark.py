"""The sink for Spark: which batches it publishes, and what it compares."""

from collections.abc import Mapping
from typing import Any

import psycopg

from outbox._postgres.sink_tables import BEGIN, END, KNOWN, MOVE
from spark_jobs.sink import Sink
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(Sink._move, "R86", Harm.LOST)
@fails("integration/spark/test_sink.py::test_a_batch_of_which_staged_rows_are_gone_fails_and_its_retry_succeeds")
def r86_count_of_staged_rows(
    self: Sink, connection: psycopg.Connection[Any], given: Mapping[str, Any], attempts: list[str], rows: dict[int, int]
) -> None:
    """What tasks have staged is counted before the batch is committed. Rows that a crash of Postgres or a clean-up took
    would be missing in the message table, while Spark counts the batch as written: lost."""
    connection.execute(self._tables.compose(MOVE), {"attempts": attempts})


@mutant(Sink._publish, "R86", Harm.DOUBLED)
@fails("integration/spark/test_sink.py::test_a_batch_that_was_committed_is_not_published_again")
def r86_batch_that_comes_again(
    self: Sink, connection: psycopg.Connection[Any], given: Mapping[str, Any], attempts: list[str], rows: dict[int, int]
) -> None:
    """A batch that was committed is passed over when Spark hands it over again. A driver that is killed between the
    commit in Postgres and the one in the checkpoint would have its rows published twice."""
    compose = self._tables.compose
    connection.execute(compose(BEGIN), given)
    (known,) = connection.execute(compose(KNOWN), given).fetchall()
    self._require_next(given, *known)
    self._move(connection, given, attempts, rows)
    connection.execute(compose(END), given)


@mutant(Sink._require_next, "R87", Harm.LOST)
@fails("integration/spark/test_sink.py::test_a_batch_that_does_not_follow_is_refused")
def r87_only_the_next_batch(self: Sink, given: Mapping[str, Any], checkpoint: str, batch: int, *content: int) -> None:
    """Only the next batch of the same checkpoint is published. After a checkpoint was deleted its numbers begin at 0
    again: a batch with the number of the last one would be passed over, and its rows be lost in silence."""
