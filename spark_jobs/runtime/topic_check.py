"""A first look at the topics with librdkafka, before Spark starts: it answers in a moment, Spark's own after many."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException

from outbox._kafka.admin import admin_client
from spark_jobs.runtime.errors import SourceError
from spark_jobs.runtime.settings import JobSettings
from spark_jobs.runtime.source import More, refuse_missing

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
