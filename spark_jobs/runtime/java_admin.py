"""Kafka's Java admin client, with the properties of Spark's own source: what a job asks before and after it reads."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from pyspark.sql import SparkSession

from outbox._settings.of_jobs import JobSettings
from outbox.protocol.names import Place
from spark_jobs.runtime.errors import SourceError, reason, root_name
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE, JavaPackage, jvm

ANSWER_SECONDS = 10
_REFUSALS = {"TopicAuthorizationException", "GroupAuthorizationException"}


class JavaAdmin:
    """Belongs to one job; a context manager.

    Raises:
        SourceError: Kafka does not answer or refuses, or Spark has no Kafka source. Every method raises it.
    """

    def __init__(self, spark: SparkSession, settings: JobSettings) -> None:
        self._java = jvm(spark)
        self._servers = settings.bootstrap_servers
        self._kafka = self._java.org.apache.kafka
        client = self._kafka.clients.admin.AdminClient
        if isinstance(client, JavaPackage):
            raise SourceError(
                'Spark has no Kafka source. Start it with spark-submit --jars "$(outbox land jars)", which fetches '
                "what is missing, or use the image of docs/containers.md."
            )
        properties = self._java.java.util.Properties()
        for name, value in settings.java_connection().items():
            properties.setProperty(name, value)
        with self._told():
            self._admin = client.create(properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(*JVM_GONE):
            self._admin.close(self._java.java.time.Duration.ZERO)

    def _described(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the Java descriptions of those of the topics that exist."""
        wanted, found = list(names), {}
        with self._told():
            answers = self._admin.describeTopics(wanted).topicNameValues()
            for name in wanted:
                try:
                    found[name] = self._awaited(answers.get(name), self._reading(name))
                except JAVA_ERRORS as error:
                    if root_name(error) != "UnknownTopicOrPartitionException":
                        raise
        return found

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the first offsets that Kafka still has."""
        return self._listed(places, self._kafka.clients.admin.OffsetSpec.earliest())

    def ends(self, places: Iterable[Place], *, committed: bool = False) -> dict[Place, int]:
        """Return the first offsets that are not written yet; records of open Kafka transactions are below.

        Args:
            committed: Return those that a read_committed reader does not see yet.
        """
        return self._listed(places, self._kafka.clients.admin.OffsetSpec.latest(), committed=committed)

    def _listed(self, places: Iterable[Place], spec: Any, *, committed: bool = False) -> dict[Place, int]:
        wanted = list(places)
        with self._told():
            levels = self._kafka.common.IsolationLevel
            level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
            options = self._kafka.clients.admin.ListOffsetsOptions(level)
            answers = self._admin.listOffsets({self._place(place): spec for place in wanted}, options)
            futures = {place: answers.partitionResult(self._place(place)) for place in wanted}
            return {place: int(self._awaited(one, self._reading(place[0])).offset()) for place, one in futures.items()}

    def _place(self, place: Place) -> Any:
        return self._kafka.common.TopicPartition(*place)

    def _awaited(self, future: Any, needed: str = "") -> Any:
        """Return what a Java future returns."""
        try:
            return future.get(ANSWER_SECONDS, self._java.java.util.concurrent.TimeUnit.SECONDS)
        except JAVA_ERRORS as error:
            if needed and root_name(error) in _REFUSALS:
                raise SourceError(f"This client lacks rights in Kafka: {needed}. Grant them.") from error
            raise

    @staticmethod
    def _reading(topic: str) -> str:
        return f"READ on topic {topic}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of the client into one sentence."""
        try:
            yield
        except JAVA_ERRORS as error:
            late = root_name(error) == "TimeoutException"
            why = f"no answer within {ANSWER_SECONDS} s" if late else reason(error)
            raise SourceError(
                f"Kafka at {self._servers} cannot be used: {why}. Start it, or correct bootstrap_servers, the network "
                "or the credentials."
            ) from error
