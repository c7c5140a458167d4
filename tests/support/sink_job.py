"""A stream into the sink, as a program that tests kill: the lines of each file of a folder are a batch.

python -m tests.support.sink_job FOLDER TOPIC URL TABLE_PREFIX
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.runtime.session import local_session
from spark_jobs.sink import OutboxSink
from tests.support.spark import SETTINGS


def run_stream(spark: SparkSession, folder: str, topic: str, **options: str) -> None:
    spark.dataSource.register(OutboxSink)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{folder}/in")
    query = messages(lines.repartition(3, "value"), topic).writeStream.format("outbox")
    query = query.option("checkpointLocation", f"{folder}/checkpoint").options(**options)
    query.trigger(availableNow=True).start().awaitTermination()


def messages(lines: DataFrame, topic: str) -> DataFrame:
    return lines.selectExpr(f"'{topic}' AS topic", "substring(value, 1, 1) AS key", "value")


def main(folder: str, topic: str, url: str, prefix: str) -> None:
    spark = local_session("sink", [], {**SETTINGS, "spark.master": "local[2,4]"})
    run_stream(spark, folder, topic, query="lines", service="spark", url=url, table_prefix=prefix)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
