"""What a message costs Spark on its way into the sink `outbox`, beside Spark's own sink for Kafka."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial

from pyspark.sql import SparkSession

from benchmarks.cpu import spark_cpu_us
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox._postgres.message_table import MessageTable
from outbox._postgres.sink_tables import SinkTables
from spark_jobs.sink import OutboxSink
from tests.support.harness import Site

_BATCHES = 5
_COPIES = "copies"


def measure_sink(spark: SparkSession, site: Site, topic: str, records: int, rounds: int) -> list[Figure]:
    """Stream a topic into a message table, and into another topic, in turn.

    Args:
        topic: Full name of a topic that holds so many records.
    """
    site.create_tables(MessageTable, SinkTables)
    site.create_topics(_COPIES, partitions=4)
    spark.dataSource.register(OutboxSink)
    own = {"service": "spark", "url": site.postgres_url, "table_prefix": site.name, "channel": site.name}
    variants = {
        "outbox": partial(_spent, spark, site, topic, records, "outbox", own),
        "kafka": partial(_spent, spark, site, topic, records, "kafka", {}),
    }
    found = interleave(variants, rounds, warm=True)
    return [
        Figure(
            "sink_cpu",
            f"CPU of Spark for a message of a stream into the sink, {records:,} of 256 B in {_BATCHES} batches",
            "µs",
            "Spark's own sink for Kafka, at least once",
            found["outbox"],
            found["kafka"],
            Target("ratio", "at most", 1.6),
        )
    ]


def _spent(spark: SparkSession, site: Site, topic: str, records: int, sink: str, more: Mapping[str, str]) -> float:
    """Return the microseconds of Spark, with its Python, for a record."""
    rows = spark.readStream.format("kafka").options(subscribe=topic, startingOffsets="earliest")
    rows = rows.option("kafka.bootstrap.servers", site.bootstrap_servers)
    rows = rows.option("maxOffsetsPerTrigger", records // _BATCHES)
    messages = rows.load().selectExpr(f"'{site.topic(_COPIES)}' AS topic", "key", "value")
    with tempfile.TemporaryDirectory(prefix="outbox-sink-") as folder:
        writer = messages.writeStream.format(sink).option("checkpointLocation", folder).trigger(availableNow=True)
        writer = writer.option("kafka.bootstrap.servers", site.bootstrap_servers).options(**more)
        before = spark_cpu_us()
        writer.option("query", folder).start().awaitTermination()
        spent = spark_cpu_us() - before
    if sink == "outbox":
        ((count,),) = site.sql(f"SELECT count(*) FROM {site.tables.message}")  # noqa: S608 - a table of this site
        if count != records:
            raise RuntimeError(f"{count:,} of {records:,} records were published")
        site.sql(f"TRUNCATE {site.tables.message}, {site.tables.staged}")
    return spent / records
