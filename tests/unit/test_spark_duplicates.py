"""A feed without repeats: the first of each message id, across batches; what has no id is never a repeat."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from spark_jobs.columns import OUTBOX_NAMES, outbox_columns
from spark_jobs.duplicates import without_duplicates
from tests.landing import identified
from tests.spark import KAFKA_SCHEMA, NOON, Record, records, session


class Feed:
    """Records as files that a stream follows; the offsets of what came out."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        self.checkpoint = folder / "checkpoint"
        self.seen: list[int] = []

    def push(self, *given: Record) -> list[int]:
        """One more batch; what came out of it."""
        records(*given).coalesce(1).write.mode("append").parquet(str(self.source))
        before = len(self.seen)
        rows = outbox_columns(session().readStream.schema(KAFKA_SCHEMA).parquet(str(self.source)))
        query = (
            without_duplicates(rows, "10 minutes")
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(self.seen[before:])

    def _take(self, batch: DataFrame, _: int) -> None:
        assert batch.columns == [*KAFKA_COLUMNS, *OUTBOX_NAMES]
        self.seen += [row.offset for row in batch.select("offset").collect()]


KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def test_repeats_are_dropped_and_records_without_id_are_kept(feed: Feed) -> None:
    repeated = [Record(0, identified(0)), Record(1, identified(0))]
    first = feed.push(*repeated, Record(2), Record(3), Record(4, [("outbox-id", b"?")]))
    assert first in ([0, 2, 3, 4], [1, 2, 3, 4])  # which of two in one batch comes first is Spark's choice
    later = NOON + timedelta(minutes=5)
    assert feed.push(Record(5, identified(0), timestamp=later), Record(6, identified(6), timestamp=later)) == [6]
