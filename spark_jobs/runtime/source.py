"""Kafka as the jobs read it: the options of Spark's source, and a look at the topics before a query starts."""

from collections.abc import Callable, Container, Iterable, Sequence

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from outbox._kafka.admin import admin_client
from outbox._settings.of_jobs import READ_COMMITTED, JobSettings
from spark_jobs.runtime.errors import SourceError
from spark_jobs.runtime.java_admin import JavaAdmin
from spark_jobs.runtime.spans import Offsets, by_topic

FETCH = {
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "fetch.max.bytes": str(64 * 1024 * 1024),
}
"""Spark asks the broker twice for offsets around each poll, so polls of 500 records, Kafka's default, are dear."""


def source_options(settings: JobSettings, topics: Sequence[str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source, the same for streams and batches.

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


More = Callable[[Sequence[str]], str]
"""Returns what else to do about topics that do not exist, for people."""


def nothing_more(_: Sequence[str]) -> str:
    """Return an empty text."""
    return ""


def refuse_missing(wanted: Iterable[str], found: Container[str], more: More = nothing_more) -> None:
    """Name the topics that do not exist."""
    if missing := [name for name in wanted if name not in found]:
        raise SourceError(f"Topic {', '.join(missing)} does not exist. Create it, or correct its name{more(missing)}.")


class KafkaView(JavaAdmin):
    """The topics of a job and their offsets."""

    def __init__(self, spark: SparkSession, settings: JobSettings, topics: Sequence[str]) -> None:
        super().__init__(spark, settings)
        self._topics = tuple(topics)

    def topic_ids(self) -> dict[str, str]:
        """Ids of those topics that exist; a topic that was deleted and recreated has another one."""
        return {name: str(topic.topicId().toString()) for name, topic in self._described(self._topics).items()}

    def check_topics(self, more: More) -> None:
        refuse_missing(self._topics, self.topic_ids(), more)

    def offsets(self) -> tuple[Offsets, Offsets]:
        """Return the first offsets that Kafka has, and the first that are not written yet, of the topics that exist."""
        described = self._described(self._topics)
        places = [(name, number) for name, topic in described.items() for number in range(len(topic.partitions()))]
        return by_topic(self._earliest(places)), by_topic(self._latest(places))


ANSWER_SECONDS = 5.0


def check_topics(settings: JobSettings, topics: Sequence[str], more: More) -> None:
    """See whether the topics exist, where librdkafka can reach Kafka.

    A job that has properties for Kafka's Java client only, such as passwords, is not looked at: librdkafka would be
    refused where Spark is not.
    """
    if settings.kafka_java and not settings.kafka:
        return
    admin = admin_client(settings.connection())
    try:
        found = admin.list_topics(timeout=ANSWER_SECONDS).topics
    except KafkaException as error:
        raise SourceError(
            f"Kafka at {settings.bootstrap_servers} cannot be used: {error.args[0].str()}. Start it, or correct "
            "bootstrap_servers, the network or the credentials."
        ) from error
    refuse_missing(topics, found, more)
