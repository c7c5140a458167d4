"""`python -m tests.land_torture.naive`: a job that appends each batch, and that the torture must find out."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from outbox._failpoints import failpoint
from outbox._settings.of_jobs import LandSettings
from spark_jobs.columns import landed_columns
from spark_jobs.landing.job import read
from spark_jobs.runtime.session import DELTA_LOCK, SPARK_LOCK, spark_session
from spark_jobs.tables.delta_output import PARTITIONED_BY, RECORDS
from spark_jobs.tables.delta_table import FORMAT


def append_all(spark: SparkSession, settings: LandSettings) -> StreamingQuery:
    """Start to append each batch, with the columns that `land` writes."""

    def append(batch: DataFrame, batch_id: int) -> None:
        numbered = batch.withColumn("batch_id", f.lit(batch_id).cast("bigint"))
        writer = numbered.write.format(FORMAT).partitionBy(*PARTITIONED_BY).mode("append")
        writer.save(f"{settings.output}/{RECORDS}")
        failpoint("land.batch_completed")

    stream = landed_columns(read(spark, settings)).writeStream.foreachBatch(append)
    stream = stream.option("checkpointLocation", settings.checkpoint)
    return (stream.trigger(availableNow=True) if settings.available_now else stream).start()


def main() -> None:
    """Append until what is there is landed, or until the process is killed."""
    settings = LandSettings()  # all of them come from the environment
    with spark_session(settings.name, settings.spark, [SPARK_LOCK, DELTA_LOCK]) as spark:
        append_all(spark, settings).awaitTermination()


if __name__ == "__main__":
    main()
