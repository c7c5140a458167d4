"""The table of `land` beside Kafka: of each partition the same records, up to where the table is landed."""

from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from spark_jobs.auditing.comparison import Comparison, compare
from spark_jobs.auditing.inputs import SpanPlan, add_note
from spark_jobs.records.evidence import inside
from spark_jobs.records.topics import record_hash
from spark_jobs.runtime.kafka_offsets import Topic, topic_uuid
from spark_jobs.runtime.spans import Gap, Span, Spans
from spark_jobs.tables.delta_output import Output
from spark_jobs.tables.progress import Progress

MOST_OFFSETS = 10
"""How many offsets that differ are named of a partition."""


class LandedPlan(SpanPlan):
    """Fixes what of its topics a table of `land` should have since a window began."""

    def spans(self, progress: Progress) -> dict[str, dict[int, Span]]:
        topics, found = self._kafka.topics(progress.topics), dict[str, dict[int, Span]]()
        for name, id_ in progress.topics.items():
            topic = topics.get(name)
            if topic is None or topic.id != topic_uuid(id_):
                self._note(name, "the topic that was landed does not exist any more")
            elif topic.compacted:
                self._note(name, "the topic is compacted: the table may have records that Kafka has no more")
            else:
                found[name] = self._landed(topic, progress)
        return found

    def _landed(self, topic: Topic, progress: Progress) -> dict[int, Span]:
        name, spans, ends = topic.name, dict[int, Span](), self._committed_ends(topic)
        behind = self._times(topic, self._window.end)
        for place, start in self._since(topic, self._window.start - self._clock_skew, ends).items():
            number, last = place[1], ends[place]
            end = progress.end.get(name, {}).get(str(number), 0)
            needed = min(behind[place], last) if behind[place] >= 0 else last
            if not needed <= end <= last:
                where = f"the window ends at {needed} and the partition at {last}"
                self._note(name, f"partition {number} is landed up to offset {end}, {where}")
            spans[number] = min(start, end), min(end, last)
        for gap in progress.gaps:
            if gap.topic == name and gap.last_offset + 1 >= spans[gap.partition][0]:
                add_note(self.shortened, name, f"accepted gap {gap}")
        return spans


class LandedTable:
    """The table of an output of `land`, and how Kafka's records are read.

    Args:
        read: Returns records of spans, as Spark's Kafka source gives them.
    """

    def __init__(self, table: Output, read: Callable[[Spans], DataFrame]) -> None:
        self._table = table
        self._read = read
        self.progress = table.landed()

    def compare(self, spans: Spans) -> list[Comparison]:
        """Compare the records of spans, each partition that has some."""
        if not spans:
            return []
        rows = compare(*self._sides(spans), "topic", "partition").orderBy("topic", "partition").collect()
        return [self._comparison(row, spans[row.topic][row.partition]) for row in rows]

    def _comparison(self, row: Row, span: Span) -> Comparison:
        offsets: tuple[int, ...] = ()
        if row.differs:
            by_offset = compare(*self._sides({row.topic: {row.partition: span}}), "offset").where("differs")
            offsets = tuple(one.offset for one in by_offset.orderBy("offset").limit(MOST_OFFSETS).collect())
        return Comparison(row.topic, row.partition, row.expected, row.found, row.differs, offsets)

    def _sides(self, spans: Spans) -> tuple[DataFrame, DataFrame]:
        records = self._read(spans).where(_outside(self.progress.gaps))
        columns = ("topic", "partition", "offset", record_hash().alias("hash"))
        return records.select(*columns), self._table.read().where(_within(spans)).select(*columns)


def _outside(gaps: Iterable[Gap]) -> Column:
    """Whether a record is in no accepted gap: Kafka may have it again after an unclean election."""
    accepted = (
        (f.col("topic") == gap.topic)
        & (f.col("partition") == gap.partition)
        & f.col("offset").between(gap.first_offset, gap.last_offset)
        for gap in gaps
    )
    return ~reduce(Column.__or__, accepted, f.lit(False))


def _within(spans: Spans) -> Column:
    """Whether a record is in the spans; by the lowest offset of a topic Delta passes over older files."""
    found = f.lit(False)
    for topic, parts in spans.items():
        lowest = min(start for start, _ in parts.values())
        below = inside(parts, f.col("partition"), f.col("offset"))
        found |= (f.col("topic") == topic) & (f.col("offset") >= lowest) & below
    return found
