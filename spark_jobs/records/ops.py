"""Op markers as evidence: the entries of op records, read as the relay reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from outbox.protocol.identifiers import UUID_PATTERN
from outbox.protocol.names import FORMAT_VERSION, OP_HEADER
from outbox.protocol.op import RANKED, OpSource
from spark_jobs.records.evidence import inside, overlapping
from spark_jobs.records.headers import header
from spark_jobs.runtime.spans import Span

_SOURCE = rf"\A{FORMAT_VERSION};({'|'.join(OpSource)})\z"
_VERDICTS = ".verdict"
"""End of the verdict topic's name, and of no op topic's: a channel's name has no dot."""
_OFFSET = "(?:-1|0|[1-9][0-9]{0,17})"
_ENTRY = (
    rf"\A[CRUD] {UUID_PATTERN} {UUID_PATTERN} (?:0|[1-9][0-9]{{0,8}}) (?:-|[0-9,-]+) {_OFFSET} {_OFFSET} [0-9]{{1,10}}"
    r"(?: .*)?\z"
)

_FIELDS = ("kind", "source", "partition", "positions", "first", "last", "time", "offset", "contained")


def op_evidence(records: DataFrame, half_topic_id: str, window: Mapping[int, Span]) -> DataFrame:
    """Entries that name halves of the window, or none.

    A record with one malformed entry counts for nothing, nor does one whose source does not write to its topic
    (R65), nor an entry of another half topic or partition.

    Args:
        records: Records of the op and verdict topic as Spark's Kafka source gives them.
        window: Spans of half offsets.
    """
    texts = records.select(
        f.col("partition").alias("_at"),
        "offset",
        "timestamp",
        f.col("topic").endswith(_VERDICTS).alias("_verdict"),
        f.regexp_extract(header(OP_HEADER), _SOURCE, 1).alias("source"),
        f.split(f.try_validate_utf8(f.col("value").cast("string")), "\n").alias("_lines"),
    )
    # What is exploded is split already, and nothing is for a record that does not count: a filter on it would be pushed
    # down to the record, and everything that it looks at be computed once more.
    placed = f.col("source").isin(*RANKED) == f.col("_verdict")
    valid = (f.col("source") != "") & placed & f.forall("_lines", lambda line: line.rlike(_ENTRY))
    split = f.when(valid, f.transform("_lines", lambda line: f.split(line, " ")))
    entries = texts.select("_at", "offset", "timestamp", "source", f.explode_outer(split).alias("_parts")).select(
        "_at",
        "source",
        "offset",
        f.col("timestamp").alias("time"),
        f.col("_parts")[0].alias("kind"),
        f.col("_parts")[1].alias("transaction_id"),
        f.col("_parts")[2].alias("_topic_id"),
        f.col("_parts")[3].cast("int").alias("partition"),
        f.col("_parts")[4].alias("positions"),
        f.col("_parts")[5].cast("bigint").alias("first"),
        f.col("_parts")[6].cast("bigint").alias("last"),
    )
    first, last = f.col("first"), f.col("last")
    ours = (f.col("_topic_id") == half_topic_id) & (f.col("_at") == f.col("partition"))
    contained = inside(window, f.col("partition"), first) & inside(window, f.col("partition"), last)
    return (
        entries.where(ours & ((first < 0) | overlapping(window, f.col("partition"), first, last)))
        .select("*", f.coalesce(contained, f.lit(False)).alias("contained"))
        .select("transaction_id", f.struct(*_FIELDS).alias("op"))
    )
