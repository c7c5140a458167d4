"""Kafka as the jobs read it: the options of Spark's source, and a look at the topics before a query starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.errors import SourceError, reason, root_name
from spark_jobs.jvm import JAVA_ERRORS, JavaPackage, jvm
from spark_jobs.settings import READ_COMMITTED, JobSettings

ANSWER_SECONDS = 10

FETCH = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "fetch.max.bytes": str(64 * 1024 * 1024),
}
"""Spark asks the broker twice for offsets around each poll, so polls of 500 records, Kafka's default, are dear."""


def source_options(settings: JobSettings, topics: Sequence[str]) -> dict[str, str]:
    """The options of Spark's Kafka source, the same for streams and batches.

    Only committed records, headers included, and an end with an error when records that were to be read are gone.
    """
    properties = {**FETCH, **settings.java_connection(), "isolation.level": READ_COMMITTED}
    return {
        **{f"kafka.{name}": value for name, value in properties.items()},
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "groupIdPrefix": settings.name,
    }


def topic_ids(spark: SparkSession, settings: JobSettings, topics: Sequence[str]) -> dict[str, str]:
    """Ids of topics, asked with the same client and properties as Spark's source; a topic made again has another id.

    Raises:
        SourceError: It does not answer or refuses, a topic is missing, or Spark has no Kafka source.
    """
    missing, found = [], {}
    with _admin(spark, settings) as admin:
        answers = admin.describeTopics(list(topics)).topicNameValues()
        for topic in topics:
            try:
                answer = answers.get(topic).get(ANSWER_SECONDS, jvm(spark).java.util.concurrent.TimeUnit.SECONDS)
                found[topic] = str(answer.topicId().toString())
            except JAVA_ERRORS as error:
                if root_name(error) != "UnknownTopicOrPartitionException":
                    raise
                missing.append(topic)
    if missing:
        raise SourceError(f"topic {', '.join(missing)} does not exist: create it, or correct its name")
    return found


@contextmanager
def _admin(spark: SparkSession, settings: JobSettings) -> Iterator[Any]:
    java = jvm(spark)
    client = java.org.apache.kafka.clients.admin.AdminClient
    if isinstance(client, JavaPackage):
        raise SourceError(
            "Spark has no Kafka source: give spark-submit the jars that docs/spark.md names, with --jars or --packages"
        )
    properties = java.java.util.Properties()
    for name, value in settings.java_connection().items():
        properties.setProperty(name, value)
    admin = None
    try:
        admin = client.create(properties)
        yield admin
    except JAVA_ERRORS as error:
        late = root_name(error) == "TimeoutException"
        why = f"no answer within {ANSWER_SECONDS} s" if late else reason(error)
        raise SourceError(f"Kafka at {settings.bootstrap_servers} cannot be used: {why}") from error
    finally:
        if admin is not None:
            admin.close(java.java.time.Duration.ZERO)
