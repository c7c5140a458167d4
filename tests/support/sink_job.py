"""A stream into a sink, as a program that tests kill: the lines of each file of a folder are a batch.

python -m tests.support.sink_job FOLDER TOPIC outbox URL TABLE_PREFIX
python -m tests.support.sink_job FOLDER TOPIC kafka SERVERS -
It ends when all files are read; if OUTBOX_AVAILABLE_NOW is empty, only when it is killed.
"""

import json
import os
import sys

from pyspark.sql import DataFrame, SparkSession

from outbox._jars.fetch import fetch
from spark_jobs.runtime.session import SPARK_LOCK, local_session
from spark_jobs.sink import OutboxSink
from tests.support.spark import SETTINGS


def run_stream(spark: SparkSession, folder: str, topic: str, sink: str = "outbox", **options: str) -> None:
    spark.dataSource.register(OutboxSink)
    available_now = os.environ.get("OUTBOX_AVAILABLE_NOW")
    most = 100 if available_now else 1  # what was not read while it was killed
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", most).load(f"{folder}/in")
    query = messages(lines.repartition(3, "value"), topic).writeStream.format(sink)
    query = query.option("checkpointLocation", f"{folder}/checkpoint").options(**options)
    if available_now != "":
        query = query.trigger(availableNow=True)
    query.start().awaitTermination()


def messages(lines: DataFrame, topic: str) -> DataFrame:
    return lines.selectExpr(f"'{topic}' AS topic", "substring(value, 1, 1) AS key", "value")


def main(folder: str, topic: str, sink: str, place: str, prefix: str) -> None:
    settings = {**SETTINGS, **json.loads(os.environ.get("OUTBOX_SPARK", "{}"))}
    if settings["spark.master"].startswith("local"):
        settings["spark.master"] = "local[2,4]"  # a task is tried again, as on a cluster
    own = {"query": "lines", "service": "spark", "url": place, "table_prefix": prefix}
    options = own if sink == "outbox" else {"kafka.bootstrap.servers": place}
    spark = local_session("sink", fetch(SPARK_LOCK), settings)
    run_stream(spark, folder, topic, sink, **options)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
