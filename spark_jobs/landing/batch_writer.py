"""Landing batches so that a batch that Spark replays is in the tables once.

The order is: a look whether the topics are still the same; records, counted where they were written; from them the
quarantine and the parsed values; a second look at the topics; everything to its place; the manifest. Without a manifest
the batch is written again, over what the first try left; with one the rows stay, and nothing is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import structlog
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from outbox._failpoints import failpoint
from spark_jobs.landing.parsing import failed_rows, parse_values, parsed_rows
from spark_jobs.runtime.errors import JobFailedError, OutputError, SourceError, is_data_loss, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.runtime.spans import read_text
from spark_jobs.tables.checksums import count_records, count_units
from spark_jobs.tables.layout import MANIFESTS, QUARANTINE, RECORDS, manifest_file, parsed_table
from spark_jobs.tables.manifest import Manifest, PartitionRows, UnitRows
from spark_jobs.tables.pairing import Owner, check_ids, check_pair, claim, last_manifest, way_without
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.sinks import Sink

log = structlog.get_logger()

_RECORD = ("topic", "partition", "offset", "timestamp")
_CONTENT = ("key", "value", "headers", "day")


def quarantined_headers(records: DataFrame) -> DataFrame:
    """Of records, those whose headers have a problem; the table of records has them, too."""
    problem = f.col("problem")
    return _rows(records.where(problem.isNotNull()), f.lit(None).cast("string"), problem)


def quarantined_values(failed: DataFrame, topic: str) -> DataFrame:
    """Rows whose values the schema of their topic does not read; the parsed table misses them."""
    return _rows(failed, f.lit(parsed_table(topic)), f.col("_error"))


def _rows(records: DataFrame, missing_from: Column, why: Column) -> DataFrame:
    return records.select(*_RECORD, missing_from.alias("missing_from"), why.alias("reason"), *_CONTENT)


class BatchWriter:
    """Writes the batches of one query; to be called by `foreachBatch`.

    Args:
        topic_ids: Returns the ids of the topics by name, as they are now.
        schemas: Schemas of values by topic, for those that are parsed.

    Attributes:
        failure: The error that ended the last batch; Spark shows only its own.
        gone: Whether that was because Kafka does not have the records any more.
    """

    def __init__(
        self,
        job_id: str,
        output: Folder,
        checkpoint: Checkpoint,
        sink: Sink,
        topic_ids: Callable[[], Mapping[str, str]],
        schemas: Mapping[str, StructType],
    ) -> None:
        self._job_id = job_id
        self._output = output
        self._checkpoint = checkpoint
        self._sink = sink
        self._topic_ids = topic_ids
        self._schemas = schemas
        self._topics: Mapping[str, str] = {}
        self.failure: Exception | None = None
        self.gone = False
        self.batches = 0
        self.rows = 0

    def prepare(self) -> None:
        """Look at the topics, make the output's folders, and remove what killed runs left."""
        self._topics = dict(self._topic_ids())
        check_pair(self._output, self._checkpoint, self._topics, self._sink.name)
        self._sink.prepare()
        self._output.make(MANIFESTS)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Land a batch.

        Args:
            batch: Its rows, with the columns of the table of records.
        """
        try:
            self._land(batch, batch_id)
        except JAVA_ERRORS as error:
            self.gone = is_data_loss(error)
            self.failure = JobFailedError(f"Batch {batch_id} failed: {reason(error)}")
            raise
        except Exception as error:
            self.failure = error
            raise

    def _land(self, batch: DataFrame, batch_id: int) -> None:
        if self._is_landed(batch_id):
            log.info("Batch was landed before", batch=batch_id)
            return
        began = time.monotonic()
        # Before anything is written: what a sink has committed at once cannot be taken back.
        self._check_topics(batch_id, f"before batch {batch_id} was read")
        claim(self._output, Owner(self._sink.name, self._checkpoint.query_id() or ""))
        self._land_rest(self._sink.write(RECORDS, batch_id, batch), batch_id, began)

    def finish(self) -> None:
        """Land the planned batch without Kafka, if a killed run has written its records for good."""
        last = last_manifest(self._output)
        batch_id = 0 if last is None else last.batch_id + 1
        if self._checkpoint.planned(batch_id) is None:
            return
        if (records := self._sink.kept(RECORDS, batch_id)) is not None:
            self._land_rest(records, batch_id, time.monotonic())

    def _land_rest(self, records: DataFrame, batch_id: int, began: float) -> None:
        """Land a batch whose records are written."""
        counts = count_records(records)
        failpoint("land.records_written")
        derived = tuple(self._write_derived(records, counts, batch_id))
        # After all reading: a topic that is still the same was the same while it was read.
        self._check_topics(batch_id, f"while batch {batch_id} was read")
        manifest = self._manifest(batch_id, counts, derived)
        self._sink.publish(batch_id, {unit.table for unit in manifest.units()})
        failpoint("land.data_written")
        self._output.put_text(manifest_file(batch_id), manifest.encode())
        failpoint("land.manifest_written")
        self._count_and_log(manifest, time.monotonic() - began)

    def _write_derived(
        self, records: DataFrame, counts: tuple[PartitionRows, ...], batch_id: int
    ) -> Iterator[UnitRows]:
        """Write what derives from records; it is read from where these were written, not from Kafka again."""
        suspect = []
        if any(part.problems for part in counts):
            suspect.append(quarantined_headers(records))
        for topic in sorted({part.topic for part in counts} & set(self._schemas)):
            parsed = parse_values(records.where(f.col("topic") == topic), self._schemas[topic])
            yield from self._write(parsed_table(topic), batch_id, parsed_rows(parsed))
            suspect.append(quarantined_values(failed_rows(parsed), topic))
        if suspect:
            together = suspect[0]
            for more in suspect[1:]:
                together = together.unionByName(more)
            yield from self._write(QUARANTINE, batch_id, together)

    def _write(self, table: str, batch_id: int, rows: DataFrame) -> tuple[UnitRows, ...]:
        return count_units(table, self._sink.write(table, batch_id, rows))

    def _check_topics(self, batch_id: int, when: str) -> None:
        try:
            now = self._topic_ids()
        except SourceError as error:
            raise JobFailedError(f"Batch {batch_id} failed: {error}") from error
        way_on = partial(way_without, self._output, self._checkpoint)
        check_ids(self._topics, now, self._checkpoint.start(batch_id), when, way_on)

    def _is_landed(self, batch_id: int) -> bool:
        text = self._output.text(manifest_file(batch_id))
        if text is None:
            return False
        landed = Manifest.parse(text)
        if landed.query_id != self._checkpoint.query_id() or landed.end != self._checkpoint.end(batch_id):
            raise OutputError(
                f"Batch {batch_id} of {self._output} was landed with other offsets than {self._checkpoint} now has for "
                "it, as after the checkpoint was put back from a copy. Nothing was written. Land into another output."
            )
        return True

    def _manifest(self, batch_id: int, counts: tuple[PartitionRows, ...], derived: tuple[UnitRows, ...]) -> Manifest:
        return Manifest(
            self._job_id,
            self._checkpoint.query_id() or "",
            batch_id,
            self._checkpoint.start(batch_id),
            self._checkpoint.end(batch_id),
            self._topics,
            counts,
            derived,
        )

    def _count_and_log(self, manifest: Manifest, seconds: float) -> None:
        self.batches += 1
        self.rows += manifest.rows
        log.info(
            "Batch landed",
            batch=manifest.batch_id,
            rows=manifest.rows,
            quarantined=manifest.quarantined,
            rows_per_second=round(manifest.rows / seconds),
            seconds=round(seconds, 2),
            offsets=read_text(manifest.start, manifest.end),
        )
