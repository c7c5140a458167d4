"""Kafka as the jobs read it: the options of Spark's source, and a look at the topics before a query starts."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from pyspark.sql import SparkSession

from spark_jobs.errors import SourceError, reason, root_name
from spark_jobs.jvm import JAVA_ERRORS, JVM_GONE, JavaPackage, jvm
from spark_jobs.manifest import Offsets
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


def refuse_missing(wanted: Iterable[str], found: Container[str]) -> None:
    """Name the topics that do not exist.

    Raises:
        SourceError: There are some.
    """
    if missing := [name for name in wanted if name not in found]:
        raise SourceError(f"topic {', '.join(missing)} does not exist: create it, or correct its name")


class KafkaView:
    """Topics and their offsets, asked with the same client and properties as Spark's source.

    Args:
        spark: Session with Kafka's classes.
        settings: How to reach Kafka.
        topics: The topics of the job.

    Raises:
        SourceError: Kafka does not answer or refuses, a topic is missing, or Spark has no Kafka source. Every method
            raises it.
    """

    def __init__(self, spark: SparkSession, settings: JobSettings, topics: Sequence[str]) -> None:
        self._java = jvm(spark)
        self._topics = tuple(topics)
        self._servers = settings.bootstrap_servers
        client = self._java.org.apache.kafka.clients.admin.AdminClient
        if isinstance(client, JavaPackage):
            raise SourceError(
                "Spark has no Kafka source: give spark-submit the jars that docs/spark.md names, with --jars or "
                "--packages"
            )
        properties = self._java.java.util.Properties()
        for name, value in settings.java_connection().items():
            properties.setProperty(name, value)
        with self._told():
            self._admin = client.create(properties)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the client."""
        with suppress(*JVM_GONE):
            self._admin.close(self._java.java.time.Duration.ZERO)

    def topic_ids(self) -> dict[str, str]:
        """Ids of those topics that exist; a topic that was deleted and made again has another one."""
        return {name: str(topic.topicId().toString()) for name, topic in self._described().items()}

    def check_topics(self) -> None:
        """See that all topics exist."""
        refuse_missing(self._topics, self.topic_ids())

    def offsets(self) -> tuple[Offsets, Offsets]:
        """The first offsets that Kafka has, and the first that are not written yet, of the topics that exist."""
        partitions = [(name, number) for name, topic in self._described().items() for number in _numbers(topic)]
        spec = self._java.org.apache.kafka.clients.admin.OffsetSpec
        return self._listed(partitions, spec.earliest()), self._listed(partitions, spec.latest())

    def _described(self) -> dict[str, Any]:
        found = {}
        with self._told():
            answers = self._admin.describeTopics(list(self._topics)).topicNameValues()
            for name in self._topics:
                try:
                    found[name] = self._awaited(answers.get(name))
                except JAVA_ERRORS as error:
                    if root_name(error) != "UnknownTopicOrPartitionException":
                        raise
        return found

    def _listed(self, partitions: Sequence[tuple[str, int]], spec: Any) -> Offsets:
        place = self._java.org.apache.kafka.common.TopicPartition
        offsets: dict[str, dict[str, int]] = {}
        with self._told():
            asked = {place(name, number): spec for name, number in partitions}
            answers = self._admin.listOffsets(asked)
            for name, number in partitions:
                offset = self._awaited(answers.partitionResult(place(name, number))).offset()
                offsets.setdefault(name, {})[str(number)] = int(offset)
        return offsets

    def _awaited(self, future: Any) -> Any:
        return future.get(ANSWER_SECONDS, self._java.java.util.concurrent.TimeUnit.SECONDS)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except JAVA_ERRORS as error:
            late = root_name(error) == "TimeoutException"
            why = f"no answer within {ANSWER_SECONDS} s" if late else reason(error)
            raise SourceError(f"Kafka at {self._servers} cannot be used: {why}") from error


def _numbers(topic: Any) -> range:
    return range(len(topic.partitions()))
