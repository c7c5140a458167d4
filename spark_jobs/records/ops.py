"""Op markers as evidence: the entries of op records, read as the relay reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.identifiers import UUID_PATTERN
from outbox.protocol.names import FORMAT_VERSION, OP_HEADER
from outbox.protocol.op import DECISION_FORMAT, RANKED, OpSource
from spark_jobs.records.evidence import inside, overlapping
from spark_jobs.records.headers import header
from spark_jobs.runtime.spans import Span

_OF_SEVERAL = f"{DECISION_FORMAT};"
"""Beginning of the header of a decision on several transactions."""
_SOURCE = rf"\A(?:{FORMAT_VERSION};(?=[a-z]+\z)|{_OF_SEVERAL}(?=[a-z]+;))({'|'.join(OpSource)})(?:;{UUID_PATTERN})?\z"
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
    (R65), nor a decision on several transactions that is not whole (R70), nor an entry of another half topic or
    partition.

    Args:
        records: Records of the op and verdict topic as Spark's Kafka source gives them.
        half_topic_id: Id of the half topic.
        window: Spans of half offsets.
    """
    texts = records.select(
        f.col("partition").alias("_at"),
        "offset",
        "timestamp",
        f.col("topic").endswith(_VERDICTS).alias("_verdict"),
        f.regexp_extract(header(OP_HEADER), _SOURCE, 1).alias("source"),
        header(OP_HEADER).startswith(_OF_SEVERAL).alias("_of_several"),
        f.split(f.try_validate_utf8(f.col("value").cast("string")), "\n").alias("_all_lines"),
    ).withColumn("_lines", f.when(f.col("_of_several"), _further("_all_lines")).otherwise(f.col("_all_lines")))
    # What is exploded is split already, and nothing is for a record that does not count: a filter on it would be pushed
    # down to the record, and everything that it looks at be computed once more.
    placed = f.col("source").isin(*RANKED) == f.col("_verdict")
    whole = f.when(f.col("_of_several"), _is_whole("_all_lines", "_lines")).otherwise(f.lit(True))
    valid = (f.col("source") != "") & placed & f.forall("_lines", lambda line: line.rlike(_ENTRY)) & whole
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


def _further(lines: str) -> Column:
    """All lines but the first."""
    return f.slice(lines, 2, f.size(lines))


def _is_whole(lines: str, entries: str) -> Column:
    """Whether a decision on several transactions has the entries that its first line names, in their order (R70).

    Args:
        lines: All its lines.
        entries: Its lines but the first.
    """
    first, kind = f.col(lines)[0], f.substring(f.col(lines)[0], 1, 1)
    named = (first == f.concat(kind, f.lit(" "), f.size(entries).cast("string"))) & kind.isin("C", "R")
    ids = f.transform(entries, lambda line: f.get(f.split(line, " "), f.lit(1)))
    places = f.transform(entries, _place)
    return (
        named
        & (f.size(entries) > 0)
        & f.forall(entries, lambda line: line.startswith(kind))
        & (f.size(f.array_distinct(ids)) == f.size(entries))
        & (places == f.array_sort(places))
    )


def _place(line: Column) -> Column:
    """Return the place of an entry among those of its decision."""
    parts = f.split(line, " ")
    return f.struct(
        f.get(parts, f.lit(3)).try_cast("int"), f.get(parts, f.lit(5)).try_cast("bigint"), f.get(parts, f.lit(1))
    )
