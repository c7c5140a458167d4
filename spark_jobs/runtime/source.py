"""Kafka as the jobs read it: the options of Spark's source, and a look at the topics before a query starts."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from outbox._settings.of_jobs import JobSettings
from spark_jobs.kafka_topics import kafka_options
from spark_jobs.runtime.errors import SourceError
from spark_jobs.runtime.java_admin import JavaAdmin
from spark_jobs.runtime.spans import Offsets, by_topic


def source_options(settings: JobSettings, topics: Sequence[str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source, the same for streams and batches."""
    return {**kafka_options(settings.java_connection(), topics), "groupIdPrefix": settings.name}


class KafkaView(JavaAdmin):
    """The topics of a job and their offsets."""

    def __init__(self, spark: SparkSession, settings: JobSettings, topics: Sequence[str]) -> None:
        super().__init__(spark, settings)
        self._topics = tuple(topics)

    def topic_ids(self) -> dict[str, str]:
        """Ids of those topics that exist; a topic that was deleted and recreated has another one."""
        return {name: str(topic.topicId().toString()) for name, topic in self._described(self._topics).items()}

    def check_topics(self) -> None:
        found = self.topic_ids()
        if missing := [name for name in self._topics if name not in found]:
            raise SourceError(f"Topic {', '.join(missing)} does not exist. Create it, or correct its name.")

    def offsets(self) -> tuple[Offsets, Offsets]:
        """Return the first offsets that Kafka has, and the first that are not written yet, of the topics that exist."""
        described = self._described(self._topics)
        places = [(name, number) for name, topic in described.items() for number in range(len(topic.partitions()))]
        return by_topic(self.beginnings(places)), by_topic(self.ends(places))
