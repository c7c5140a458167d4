"""A batch that lands nothing: it records gaps that an operator accepted.

The commit of the table comes first. The checkpoint follows it: Spark's next batch begins where the commit ends. A
process that dies between them is caught up by the next one, before anything else is looked at.
"""

from collections.abc import Mapping

import structlog

from outbox._failpoints import failpoint
from spark_jobs.runtime.errors import JobFailedError, reason
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.runtime.spans import Gap, behind
from spark_jobs.tables.pairing import Pair
from spark_jobs.tables.progress import Progress

log = structlog.get_logger()


def accept(pair: Pair, gaps: tuple[Gap, ...], topics: Mapping[str, str]) -> None:
    """Record gaps, so that the next batch begins behind them; no query may run on the checkpoint meanwhile."""
    end, last = behind(pair.needed(), gaps), pair.claim()
    batch_id, all_gaps = last.batch_id + 1, (*last.gaps, *gaps)
    progress = Progress(last.query_id, batch_id, last.end, end, topics, all_gaps, by_operator=True)
    try:
        pair.commit(progress)
    except JAVA_ERRORS as error:
        raise JobFailedError(f"Nothing was recorded in {pair.output}: {reason(error)}. Try again.") from error
    failpoint("land.gap_recorded")
    pair.checkpoint.skip(batch_id, end)
    for topic in sorted({gap.topic for gap in gaps}):
        found = [gap for gap in gaps if gap.topic == topic]
        offsets, lost = ", ".join(map(str, found)), sum(gap.offsets for gap in found)
        log.warning("Gap accepted", topic=topic, offsets=offsets, lost=lost, batch=batch_id)
