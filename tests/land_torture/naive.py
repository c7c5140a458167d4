"""The job that one would write without much thought: each batch is appended. The torture must find it out.

`python -m tests.land_torture.naive`, with the settings of `outbox land` in the environment.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from outbox._failpoints import failpoint
from outbox._settings.of_jobs import LandSettings
from spark_jobs.columns import landed_columns
from spark_jobs.landing.job import read
from spark_jobs.runtime.session import spark_session
from spark_jobs.tables.layout import PARTITIONED_BY, RECORDS


def append_all(spark: SparkSession, settings: LandSettings) -> StreamingQuery:
    """Start to append each batch, with the columns that `land` writes."""

    def append(batch: DataFrame, _batch_id: int) -> None:
        batch.write.partitionBy(*PARTITIONED_BY).parquet(f"{settings.output}/{RECORDS}", mode="append")
        failpoint("land.data_written")

    stream = landed_columns(read(spark, settings)).writeStream.foreachBatch(append)
    stream = stream.option("checkpointLocation", settings.checkpoint_path)
    return (stream.trigger(availableNow=True) if settings.available_now else stream).start()


def main() -> None:
    """Append until what is there is landed, or until the process is killed."""
    settings = LandSettings()  # all of them come from the environment
    with spark_session(settings.name, settings.spark) as spark:
        append_all(spark, settings).awaitTermination()


if __name__ == "__main__":
    main()
