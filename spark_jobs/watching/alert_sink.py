"""Alerts to a topic, by Spark's own Kafka sink: with the properties that Spark reads with."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from pyspark.sql import SparkSession

from spark_jobs.watching.frames.alerts import ALERTS_SCHEMA
from spark_jobs.watching.settings import WatchSettings

log = structlog.get_logger()


def send_alerts(spark: SparkSession, settings: WatchSettings, records: Sequence[tuple[str, str]]) -> None:
    """Send what is new: log it, and send it to the topic, if there is one.

    Args:
        spark: Session with Spark's Kafka sink.
        settings: Which topic, and how to reach Kafka.
        records: Keys and values.
    """
    for key, value in records:
        log.warning("Alert", key=key, record=value)
    if records and settings.alerts_topic:
        frame = spark.createDataFrame(list(records), ALERTS_SCHEMA).coalesce(1)
        frame.write.format("kafka").options(**sink_options(settings)).save()


def sink_options(settings: WatchSettings) -> dict[str, str]:
    """Return the options of Spark's Kafka sink: each record is on all replicas before it counts as sent."""
    properties = {**settings.java_connection(), "acks": "all"}
    return {**{f"kafka.{name}": value for name, value in properties.items()}, "topic": settings.alerts_topic}
