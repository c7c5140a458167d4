"""How fast `land --current` is, beside a plain MERGE of each batch."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from benchmarks.environment import CORES
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox._settings.of_jobs import LandSettings
from spark_jobs.columns import landed_columns
from spark_jobs.landing.job import land, read
from spark_jobs.tables.current_state import CURRENT
from spark_jobs.tables.delta_output import RECORDS
from spark_jobs.tables.delta_table import FORMAT
from tests.support.harness import Site

_BATCHES = 5
_VIEW = "outbox_plain_batch"


def measure_current(spark: SparkSession, site: Site, topic: str, records: int, keys: int, rounds: int) -> list[Figure]:
    """Land a topic with its current state, and by a plain append and MERGE, in turn.

    Args:
        topic: Full name of a topic that holds so many records of so many keys.
    """
    variants = {
        "land": partial(_timed, spark, site, topic, records, keys, _land),
        "merge": partial(_timed, spark, site, topic, records, keys, _merge),
    }
    found = interleave(variants, rounds, warm=True)
    return [
        Figure(
            "current_vs_merge",
            f"land {records:,} records of {keys:,} keys with their current state, {_BATCHES} batches, warm session; "
            f"{CORES} cores, shared with Kafka",
            "records/s per core",
            "Kafka source, each batch appended and merged by a plain MERGE, no exactly-once",
            found["land"],
            found["merge"],
            Target("ratio", "at least", 0.8),
        )
    ]


def _timed(
    spark: SparkSession,
    site: Site,
    topic: str,
    records: int,
    keys: int,
    job: Callable[[SparkSession, LandSettings, str], None],
) -> float:
    """Return records per second and core of a whole run; the state is counted afterwards."""
    with tempfile.TemporaryDirectory(prefix="outbox-current-") as folder:
        settings = LandSettings(
            topics=topic,
            output=f"{folder}/table",
            checkpoint=f"{folder}/checkpoint",
            bootstrap_servers=site.bootstrap_servers,
            max_offsets_per_trigger=records // _BATCHES,
            available_now=True,
            current=topic,
        )
        began = time.monotonic()
        job(spark, settings, topic)
        seconds = time.monotonic() - began
        if (done := spark.read.format(FORMAT).load(f"{settings.output}/{CURRENT}/{topic}").count()) != keys:
            raise RuntimeError(f"{done:,} of {keys:,} keys have a state")
        return records / seconds / CORES


def _land(spark: SparkSession, settings: LandSettings, topic: str) -> None:  # noqa: ARG001 - as the other variant
    land(spark, settings, threading.Event())


def _merge(spark: SparkSession, settings: LandSettings, topic: str) -> None:
    state = f"{settings.output}/{CURRENT}/{topic}"

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.withColumn("batch_id", f.lit(batch_id)).write.format(FORMAT).mode("append").save(
            f"{settings.output}/{RECORDS}"
        )
        newest = Window.partitionBy("key").orderBy(f.desc("offset"))
        last = batch.withColumn("_n", f.row_number().over(newest)).where("_n = 1").drop("_n")
        if batch_id == 0:
            last.write.format(FORMAT).save(state)
            return
        last.createOrReplaceTempView(_VIEW)
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{state}` AS state USING {_VIEW} AS batch ON state.key = batch.key "
            "WHEN MATCHED AND batch.value IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED AND batch.value IS NOT NULL THEN INSERT *"
        )

    stream = landed_columns(read(spark, settings)).writeStream.foreachBatch(write)
    stream.option("checkpointLocation", settings.checkpoint).trigger(availableNow=True).start().awaitTermination()
