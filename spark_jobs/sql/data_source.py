"""The Python data source `outbox`: for batches with filter push-down, and for streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from outbox._kafka.range_reader import Span, cut_spans
from spark_jobs.runtime.errors import SourceError
from spark_jobs.sql.options import Options
from spark_jobs.sql.pushdown import Bounds, narrowed
from spark_jobs.sql.schema import OutboxTable
from spark_jobs.sql.topic_reader import ChannelReader, ReadTask, missing

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"

EVERYTHING = Bounds()


def register(spark: SparkSession) -> None:
    """Make `format("outbox")` known to a session, and let Spark push filters down to it.

    Args:
        spark: The session; its workers must have this package.
    """
    spark.conf.set(PUSH_DOWN, "true")
    spark.dataSource.register(OutboxDataSource)


class OutboxDataSource(DataSource):
    """A channel's halves, op entries, discard records, or pending halves; docs/spark/sql.md has options and columns."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "outbox"

    def schema(self) -> str:
        """Return the columns of what is read."""
        return self._options().what.columns

    def reader(self, schema: StructType) -> OutboxReader:
        """Return the reader of a batch."""
        return OutboxReader(self._options(), schema)

    def streamReader(self, schema: StructType) -> OutboxStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream.

        Raises:
            SourceError: What is pending is no stream.
        """
        options = self._options()
        if options.what is OutboxTable.PENDING:
            raise SourceError(
                "The table pending cannot be read as a stream, because it changes with the relay. "
                "Read it as a batch, or read halves and ops."
            )
        return OutboxStreamReader(options, schema)

    def _options(self) -> Options:
        return Options.of({name.lower(): value for name, value in self.options.items()})


class OutboxReader(DataSourceReader):
    """Reads what there is now.

    Args:
        options: What is read.
        schema: Its columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds = EVERYTHING

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read less for what a query wants; Spark looks at all filters again."""
        self._bounds = narrowed(filters)
        return filters

    def partitions(self) -> Sequence[ReadTask]:
        """One task for each partition that can have something."""
        return ChannelReader(self._options).shares(self._bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        if not isinstance(partition, ReadTask):  # where there are none, Spark starts a task with one of its own
            return
        yield from ChannelReader(self._options).batches(partition, self._schema, self._bounds, whole=True)


class OutboxStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes. An offset of the stream is the topic's id and, by partition, the offset that comes next.

    Args:
        options: What is read.
        schema: Its columns.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._reader = ChannelReader(options)
        self._end: list[Span] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a stream begins that has no checkpoint."""
        spans = self._reader.spans()
        return self._offset({span.partition: span.stop if self._options.latest else span.start for span in spans})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Most offsets in a batch."""
        return ReadAllAvailable() if self._options.most is None else ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end offsets: only what exists now is read."""
        self._end = self._reader.spans()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next batch goes."""
        spans = self._wanted(start, self._end or self._reader.spans())
        if isinstance(limit, ReadMaxRows):
            spans = cut_spans(spans, limit.max_rows)
        return self._offset({span.partition: max(span.start, span.stop) for span in spans})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ReadTask]:
        """One task for each partition that has something new.

        Raises:
            SourceError: Records that were to be read are gone, or the topic is another one.
        """
        if end["topic_id"] != start["topic_id"] or end["topic_id"] != self._reader.topic_id():
            raise SourceError(f"Topic {self._options.topic} was deleted and recreated. Begin with another checkpoint.")
        there = self._reader.spans()
        ends = [Span(self._options.topic, int(number), 0, offset) for number, offset in end["offsets"].items()]
        spans = [span for span in self._wanted(start, ends, there) if span]
        if (gone := missing(spans, there)) is not None:
            raise gone
        return [ReadTask(span) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        assert isinstance(partition, ReadTask)  # noqa: S101 - as `partitions()` made it
        yield from ChannelReader(self._options).batches(partition, self._schema, EVERYTHING, whole=False)

    def _wanted(self, start: dict[str, Any], ends: list[Span], there: list[Span] | None = None) -> list[Span]:
        """From where the last batch ended; a partition that is new since begins with what it has."""
        begins = {span.partition: span.start for span in (ends if there is None else there)}
        offsets = {int(number): offset for number, offset in start["offsets"].items()}
        return [
            Span(span.topic, span.partition, offsets.get(span.partition, begins.get(span.partition, 0)), span.stop)
            for span in ends
        ]

    def _offset(self, offsets: dict[int, int]) -> dict[str, Any]:
        known = {str(number): offset for number, offset in sorted(offsets.items())}
        return {"topic_id": self._reader.topic_id(), "offsets": known}
