"""Batches that land nothing: they record a gap that an operator accepted, or a topic whose landing ended.

The manifest comes first. The checkpoint follows it: Spark's next batch begins where the manifest ends. A process that
dies between them is caught up by the next one, before anything else is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import structlog
from pyspark.sql import SparkSession

from outbox._failpoints import failpoint
from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import RetireSettings, SinkName
from spark_jobs.runtime.spans import Gap, Offsets, behind, needed_text
from spark_jobs.tables.delta import DeltaSink
from spark_jobs.tables.layout import manifest_file, retired_file
from spark_jobs.tables.manifest import FORMAT_VERSION, Manifest
from spark_jobs.tables.pairing import Owner, check_owner, claim, last_manifest, needed_offsets, sink_of
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.sinks import ParquetSink, Sink

log = structlog.get_logger()


class GapWriter:
    """Writes such batches; no query may run on the checkpoint meanwhile."""

    def __init__(self, job_id: str, output: Folder, checkpoint: Checkpoint, sink: Sink) -> None:
        self._job_id = job_id
        self._output = output
        self._checkpoint = checkpoint
        self._sink = sink

    def accept(self, gaps: tuple[Gap, ...], topics: Mapping[str, str]) -> None:
        """Record gaps, so that the next batch begins behind them.

        Args:
            gaps: The gaps; not empty.
            topics: Ids of the job's topics.
        """
        batch_id = self._write(behind(self._needed(), gaps), topics, gaps=gaps)
        for topic in sorted({gap.topic for gap in gaps}):
            found = [gap for gap in gaps if gap.topic == topic]
            offsets, lost = ", ".join(map(str, found)), sum(gap.offsets for gap in found)
            log.warning("Gap accepted", topic=topic, offsets=offsets, lost=lost, batch=batch_id)

    def retire(self, topic: str, topics: Mapping[str, str]) -> None:
        """Record that a topic is not landed any more.

        Args:
            topics: Ids of the job's other topics.
        """
        needed = self._needed()
        others = {name: offsets for name, offsets in needed.items() if name != topic}
        batch_id = self._write(others, topics, retired={topic: needed.get(topic, {})})
        log.warning("Topic retired", topic=topic, not_landed=needed_text(needed, [topic]), batch=batch_id)

    def _needed(self) -> Offsets:
        return needed_offsets(self._output, self._checkpoint)

    def _write(
        self, end: Offsets, topics: Mapping[str, str], gaps: tuple[Gap, ...] = (), retired: Offsets | None = None
    ) -> int:
        last = last_manifest(self._output)
        batch_id = 0 if last is None else last.batch_id + 1
        query_id = self._checkpoint.query_id() or ""
        claim(self._output, Owner(self._sink.name, query_id))
        self._sink.discard(batch_id)  # what a killed run wrote of a batch that Spark will plan again
        manifest = Manifest(
            self._job_id,
            query_id,
            batch_id,
            self._needed(),
            end,
            topics,
            (),
            (),
            gaps,
            {} if retired is None else retired,
        )
        self._output.put_text(manifest_file(batch_id), manifest.encode())
        failpoint("land.gap_recorded")
        self._checkpoint.skip(batch_id, end)
        return batch_id


def catch_up(output: Folder, checkpoint: Checkpoint) -> None:
    """Bring the checkpoint behind the last manifest, if that lands nothing and its writer was killed."""
    last = last_manifest(output)
    if last is None or not (last.gaps or last.retired) or last.query_id != checkpoint.query_id():
        return
    committed = checkpoint.last_commit()
    done = committed is not None and committed >= last.batch_id
    if not done and _before(checkpoint, last) == last.start:
        checkpoint.skip(last.batch_id, last.end)


def _before(checkpoint: Checkpoint, manifest: Manifest) -> Offsets | None:
    """Where the checkpoint ends before a batch; a copy that was put back may not have it."""
    return checkpoint.start(0) if manifest.batch_id == 0 else checkpoint.planned(manifest.batch_id - 1)


def retire(spark: SparkSession, settings: RetireSettings, topic: str) -> None:
    """Record that a topic is not landed any more. Its rows stay; the job must be stopped, and no Kafka is needed.

    Args:
        spark: Session whose file systems are used.

    Raises:
        OutputError: Output and checkpoint do not belong together, the topic is not landed there, or is the only one.
    """
    output = Folder(spark, settings.output)
    checkpoint = Checkpoint(Folder(spark, settings.checkpoint_path))
    last = last_manifest(output)
    if last is None:
        raise OutputError(
            f"{output} has no batch yet, so there is nothing of topic {topic} to retire. Name the output that has it."
        )
    kind = sink_of(output, last) or SinkName.PARQUET
    check_owner(output, checkpoint, kind, last)
    catch_up(output, checkpoint)
    if topic not in last.topics and output.exists(retired_file(topic)):
        log.info("Topic was retired before", topic=topic)
        return
    others = {name: id_ for name, id_ in last.topics.items() if name != topic}
    if topic not in last.topics:
        raise OutputError(f"Topic {topic} is not landed in {output}. Name one of: {', '.join(sorted(others))}.")
    if not others:
        raise OutputError(
            f"Topic {topic} is the only topic of {output}, which ends with it. Stop the job. Land anything else into "
            "another output with another checkpoint."
        )
    # First: a run that is killed from here on leaves a job that refuses the topic, and this command does the rest.
    output.put_text(retired_file(topic), json.dumps({"format": FORMAT_VERSION, "topic": topic}) + "\n")
    sink: Sink = DeltaSink(spark, output, str) if kind is SinkName.DELTA else ParquetSink(spark, output)
    GapWriter(settings.job_id, output, checkpoint, sink).retire(topic, others)
