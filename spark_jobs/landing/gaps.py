"""Batches that land nothing: they record a gap that an operator accepted, or a topic whose landing ended.

The commit of the table comes first. The checkpoint follows it: Spark's next batch begins where the commit ends. A
process that dies between them is caught up by the next one, before anything else is looked at.
"""

from collections.abc import Mapping

import structlog
from pyspark.sql import SparkSession

from outbox._failpoints import failpoint
from outbox._settings.of_jobs import RetireSettings
from spark_jobs.runtime.errors import JobFailedError, OutputError, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.runtime.spans import Gap, Offsets, behind, needed_text
from spark_jobs.tables.delta_output import Output
from spark_jobs.tables.pairing import Pair
from spark_jobs.tables.progress import Progress
from spark_jobs.tables.query_checkpoint import Checkpoint

log = structlog.get_logger()


def accept(pair: Pair, job_id: str, gaps: tuple[Gap, ...], topics: Mapping[str, str]) -> None:
    """Record gaps, so that the next batch begins behind them; no query may run on the checkpoint meanwhile."""
    batch_id = _record(pair, job_id, behind(pair.needed(), gaps), topics, gaps=gaps)
    for topic in sorted({gap.topic for gap in gaps}):
        found = [gap for gap in gaps if gap.topic == topic]
        offsets, lost = ", ".join(map(str, found)), sum(gap.offsets for gap in found)
        log.warning("Gap accepted", topic=topic, offsets=offsets, lost=lost, batch=batch_id)


def retire(spark: SparkSession, settings: RetireSettings, topic: str) -> None:
    """Record that a topic is not landed any more. Its rows stay; the job must be stopped, and no Kafka is needed."""
    output = Output(spark, settings.output)
    pair = Pair(output, Checkpoint(Folder(spark, settings.checkpoint_path)))
    last = pair.last
    if last is None:
        raise OutputError(
            f"{output} has no batch yet, so there is nothing of topic {topic} to retire. Name the output that has it."
        )
    pair.check_owner()
    pair.catch_up()
    if topic in last.retired:
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
    kept = pair.kept()
    end = {name: offsets for name, offsets in kept.items() if name != topic}
    # Without Kafka it cannot be seen whether rows of an unfinished batch are of the topic that was landed.
    unfinished = last.batch_id if pair.is_unfinished() else None
    retired = {topic: kept.get(topic, {})}
    batch_id = _record(pair, settings.job_id, end, others, retired=retired, instead_of=unfinished)
    if unfinished is not None:
        log.warning("Rows of an unfinished batch deleted", batch=unfinished)
    log.warning("Topic retired", topic=topic, not_landed=needed_text(kept, [topic]), batch=batch_id)


def _record(
    pair: Pair,
    job_id: str,
    end: Offsets,
    topics: Mapping[str, str],
    *,
    gaps: tuple[Gap, ...] = (),
    retired: Offsets | None = None,
    instead_of: int | None = None,
) -> int:
    last = pair.claim(job_id)
    batch_id, all_gaps, all_retired = last.batch_id + 1, (*last.gaps, *gaps), {**last.retired, **(retired or {})}
    progress = Progress(job_id, last.query_id, batch_id, last.end, end, topics, all_gaps, all_retired, by_operator=True)
    try:
        pair.commit(progress, instead_of=instead_of)
    except JAVA_ERRORS as error:
        raise JobFailedError(f"Nothing was recorded in {pair.output}: {reason(error)}. Try again.") from error
    failpoint("land.gap_recorded")
    pair.checkpoint.skip(batch_id, end)
    return batch_id
