"""How fast `land` is, beside the same without its promises, and beside reading alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.cpu import spark_cpu_us
from benchmarks.environment import CORES
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox._settings.of_jobs import LandSettings
from spark_jobs.landing.job import land, read
from spark_jobs.tables.delta_output import RECORDS
from spark_jobs.tables.delta_table import FORMAT
from tests.land_torture.naive import append_all
from tests.support.harness import Site

Count = Callable[[], int]
"""Tells how many records a run has done its work on."""

_LONGEST_SECONDS = 300.0
_LOOK_SECONDS = 0.02
_SMALL_BATCH = 1000


def measure_land(spark: SparkSession, site: Site, topic: str, records: int, rounds: int) -> list[Figure]:
    """Land a topic again and again, beside both baselines, in one warm session.

    Args:
        topic: Full name of a topic that holds so many records.
    """
    variants = {
        "land": partial(_timed, site, topic, records, partial(_land, spark)),
        "append": partial(_timed, site, topic, records, partial(_append, spark)),
        "noop": partial(_timed, site, topic, records, partial(_drop, spark)),
    }
    for run in variants.values():
        run()  # compiles what is hot
    found = interleave(variants, rounds)
    title = f"land {records:,} records of 256 B, warm session; {CORES} cores, shared with Kafka"
    return [
        Figure(
            "land_vs_delta",
            title,
            "records/s per core",
            "Kafka source appended to a Delta table, same columns, no exactly-once",
            found["land"],
            found["append"],
            Target("ratio", "at least", 0.8),
        ),
        Figure(
            "land_vs_noop",
            title,
            "records/s per core",
            "Kafka source with headers to nowhere",
            found["land"],
            found["noop"],
            Target("ratio", "at least", 0.4),
        ),
    ]


def measure_small(spark: SparkSession, site: Site, topic: str, records: int, rounds: int) -> list[Figure]:
    """Land a topic in batches of a thousand records, and append them, in turn; what Spark and Python spend counts."""
    variants = {
        "land": partial(_spent, site, topic, records, partial(_land, spark)),
        "append": partial(_spent, site, topic, records, partial(_append, spark)),
    }
    found = interleave(variants, rounds, warm=True)
    return [
        Figure(
            "land_small_cpu",
            f"CPU of Spark for a batch of {_SMALL_BATCH:,} records that `land` lands, warm session",
            "ms",
            "Kafka source appended to a Delta table, same columns, no exactly-once",
            found["land"],
            found["append"],
            Target("ratio", "at most", 2.0),
        )
    ]


def _spent(site: Site, topic: str, records: int, job: Callable[[LandSettings], Count]) -> float:
    """Return the milliseconds of Spark, with its Python, for a batch."""
    before = spark_cpu_us()
    _timed(site, topic, records, job, max_offsets_per_trigger=_SMALL_BATCH)
    return (spark_cpu_us() - before) / 1000 / (records / _SMALL_BATCH)


def measure_cold(site: Site, topic: str, rounds: int) -> list[Figure]:
    """Start the command in a new process, until the first rows are landed.

    Args:
        topic: Full name of a topic with records.
    """
    variants = {
        # Its first commit makes the table, the second one has rows.
        "land": partial(_first_rows, site, topic, ["outbox", "land"], f"{RECORDS}/_delta_log/*1.json"),
        "append": partial(_first_rows, site, topic, ["tests.land_torture.naive"], f"{RECORDS}/_delta_log/*0.json"),
    }
    found = interleave(variants, rounds)
    return [
        Figure(
            "land_cold_start",
            "start of the process until the first rows are landed, Java and Spark included",
            "s",
            "the append job, until its first commit",
            found["land"],
            found["append"],
            Target("ours", "at most", 20),
        )
    ]


def _timed(site: Site, topic: str, records: int, job: Callable[[LandSettings], Count], **more: int) -> float:
    """Return records per second and core of a whole run, from start to end; what it did is counted afterwards."""
    with tempfile.TemporaryDirectory(prefix="outbox-land-") as folder:
        settings = LandSettings(**_settings(site, topic, folder), available_now=True, **more)
        began = time.monotonic()
        count = job(settings)
        seconds = time.monotonic() - began
        if (done := count()) != records:
            raise RuntimeError(f"{done:,} of {records:,} records were landed, or read")
        return records / seconds / CORES


def _settings(site: Site, topic: str, folder: str) -> dict[str, str]:
    return {
        "topics": topic,
        "output": f"{folder}/table",
        "checkpoint": f"{folder}/checkpoint",
        "bootstrap_servers": site.bootstrap_servers,
    }


def _land(spark: SparkSession, settings: LandSettings) -> Count:
    land(spark, settings, threading.Event())
    return partial(_landed, spark, settings)


def _append(spark: SparkSession, settings: LandSettings) -> Count:
    append_all(spark, settings).awaitTermination()
    return partial(_landed, spark, settings)


def _landed(spark: SparkSession, settings: LandSettings) -> int:
    """Return records that lie in the table."""
    table = spark.read.format(FORMAT).load(f"{settings.output}/{RECORDS}").select("topic", "partition", "offset")
    rows, distinct = table.count(), table.distinct().count()
    if rows != distinct:
        raise RuntimeError(f"{rows - distinct:,} records were landed more than once")
    return distinct


def _drop(spark: SparkSession, settings: LandSettings) -> Count:
    stream = read(spark, settings).writeStream.format("noop").trigger(availableNow=True)
    query = stream.option("checkpointLocation", settings.checkpoint).start()
    query.awaitTermination()
    return lambda: sum(int(batch["numInputRows"]) for batch in query.recentProgress)


def _first_rows(site: Site, topic: str, module: list[str], sign: str) -> float:
    """Seconds from the start of a process to a sign in its output."""
    folder = tempfile.mkdtemp(prefix="outbox-land-")
    variables = {f"OUTBOX_{name.upper()}": value for name, value in _settings(site, topic, folder).items()}
    variables |= {"OUTBOX_MAX_OFFSETS_PER_TRIGGER": "10000", "OUTBOX_SPARK": json.dumps({})}
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", *module], env={**site.environment(), **variables}, stdout=subprocess.DEVNULL
    ) as process:
        try:
            while not any(Path(folder, "table").glob(sign)):
                if time.monotonic() > began + _LONGEST_SECONDS or process.poll() is not None:
                    raise TimeoutError(f"{' '.join(module)} landed nothing within {_LONGEST_SECONDS} s")
                time.sleep(_LOOK_SECONDS)
            return time.monotonic() - began
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
