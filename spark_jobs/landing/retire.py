"""The command `land retire`: end the landing of one topic, so that the job goes on with the others."""

from __future__ import annotations

import json

import structlog
from pyspark.sql import SparkSession

from spark_jobs.landing.gaps import GapWriter, catch_up
from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import RetireSettings, SinkName
from spark_jobs.tables.delta import DeltaSink
from spark_jobs.tables.layout import retired_file
from spark_jobs.tables.manifest import FORMAT_VERSION
from spark_jobs.tables.pairing import check_owner, last_manifest, sink_of
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.sinks import ParquetSink, Sink

log = structlog.get_logger()


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
