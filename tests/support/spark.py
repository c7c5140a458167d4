"""What the Spark tests share: one session for the test process, and records as Spark's Kafka source gives them."""

import atexit
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from outbox._jars.fetch import fetch
from spark_jobs.runtime.session import DELTA_LOCK, DELTA_SETTINGS, SPARK_LOCK, local_session

SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "1",
}
"""A JVM that starts soon and is not there for long."""

INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
"""A query of a few rows runs sooner than Java code for it is generated and compiled. The jobs that tests start as
processes of their own run compiled, as in production."""

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@functools.cache
def session() -> SparkSession:
    jars = [*fetch(DELTA_LOCK), *fetch(SPARK_LOCK)]
    made = local_session("tests", jars, {**SETTINGS, **INTERPRETED, **DELTA_SETTINGS})
    atexit.register(made.stop)
    return made


@dataclass(frozen=True)
class Record:
    offset: int = 0
    headers: Sequence[tuple[str, bytes | None]] | None = ()
    topic: str = "orders"
    partition: int = 0
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    timestamp: datetime = NOON


def records(*given: Record) -> DataFrame:
    rows = [
        (record.key, record.value, record.topic, record.partition, record.offset, record.timestamp, 0, record.headers)
        for record in given
    ]
    return session().createDataFrame(rows, KAFKA_SCHEMA)
