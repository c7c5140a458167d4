"""Landing batches so that a batch that Spark replays is in the tables once.

The order is: a look whether the topics are still the same; records and progress, in one Delta transaction; a second
look at the topics; Spark's commit. A batch that Spark hands over again finds its transaction, and looks at the topics.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import structlog
from pyspark.sql import DataFrame

from outbox._failpoints import failpoint
from spark_jobs.runtime.errors import JobFailedError, SourceError, is_data_loss, reason
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.runtime.spans import read_text
from spark_jobs.tables.pairing import Pair, check_ids
from spark_jobs.tables.progress import Progress

log = structlog.get_logger()


class BatchWriter:
    """Writes the batches of one query; to be called by `foreachBatch`.

    Args:
        current: Topics of which there is a table of the current state.

    Attributes:
        failure: The error that ended the last batch; Spark shows only its own.
        gone: Whether that was because Kafka does not have the records any more.
        under_way: The batch that is landed now, and when it began by the monotonic clock.
    """

    def __init__(self, pair: Pair, topic_ids: Callable[[], Mapping[str, str]], current: Iterable[str] = ()) -> None:
        self._pair = pair
        self._states = pair.output.states(current)
        self._topic_ids = topic_ids
        self._topics: Mapping[str, str] = {}
        self.failure: Exception | None = None
        self.gone = False
        self.batches = 0
        self.rows = 0
        self.malformed = 0
        self.under_way: tuple[int, float] | None = None

    def prepare(self) -> None:
        """Look at the topics, make the output's folder, and bring the current states to the last batch."""
        self._topics = dict(self._topic_ids())
        self._pair.check(self._topics)
        self._pair.output.prepare()
        if self._pair.last is not None and not self._pair.is_unfinished():
            self._merge(self._pair.last)  # of a topic whose state begins later than its records

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Land a batch."""
        self.under_way = batch_id, time.monotonic()
        try:
            self._land(batch, batch_id)
        except JAVA_ERRORS as error:
            self.gone = is_data_loss(error)
            self.failure = JobFailedError(f"Batch {batch_id} failed: {reason(error)}")
            raise
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.under_way = None

    def finish(self) -> None:
        """Do without Kafka what a killed run has not done of the last batch."""
        if self._pair.last is not None and self._pair.is_unfinished():
            self._complete(self._pair.last)

    def _land(self, batch: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        if self._pair.last is not None and self._pair.is_landed(batch_id):
            log.info("Batch was landed before", batch=batch_id)
            self._complete(self._pair.last)
            return
        # Before anything is written: what is committed cannot be taken back.
        self._check_topics(batch_id, f"before batch {batch_id} was read")
        progress = self._progress(batch_id)
        self._pair.commit(progress, batch)
        failpoint("land.records_written")
        rows, malformed = self._pair.output.count(batch_id)
        self._complete(progress)
        failpoint("land.batch_completed")
        self.batches += 1
        self.rows += rows
        self.malformed += malformed
        seconds = time.monotonic() - began
        log.info(
            "Batch landed",
            batch=batch_id,
            rows=rows,
            malformed=malformed,
            rows_per_second=round(rows / seconds),
            seconds=round(seconds, 2),
            offsets=read_text(progress.start, progress.end),
        )

    def _progress(self, batch_id: int) -> Progress:
        before, checkpoint = self._pair.claim(), self._pair.checkpoint
        start, end = checkpoint.start(batch_id), checkpoint.end(batch_id)
        return Progress(before.query_id, batch_id, start, end, self._topics, before.gaps)

    def _complete(self, progress: Progress) -> None:
        """Look at the topics after all reading: one that is still the same was the same while it was read."""
        self._check_topics(progress.batch_id, f"while batch {progress.batch_id} was read")
        self._merge(progress)

    def _merge(self, progress: Progress) -> None:
        for state in self._states:
            state.merge(progress)
            failpoint("land.state_merged")

    def _check_topics(self, batch_id: int, when: str) -> None:
        try:
            now = self._topic_ids()
        except SourceError as error:
            raise JobFailedError(f"Batch {batch_id} failed: {error}") from error
        check_ids(self._topics, now, self._pair.checkpoint.start(batch_id), when)
