"""How soon `watch --real-time` tells of a record, beside the same query in micro-batches."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.figures import Figure
from benchmarks.interleaved import interleave
from benchmarks.spread import percentile
from outbox._kafka.channel import ChannelDescription
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.positions import Positions
from spark_jobs.runtime.source import source_options
from spark_jobs.watching.alert_sink import sink_options
from spark_jobs.watching.frames.single_record_alerts import urgent_alerts
from spark_jobs.watching.real_time import start
from spark_jobs.watching.settings import WatchSettings
from tests.support.harness import Site

RECORDS = 60
"""Of each run, one after the other."""

PAUSE_SECONDS = 0.05
_LONGEST_SECONDS = 60.0
_PERCENTILES = (50, 95)

Start = Callable[[SparkSession, WatchSettings], StreamingQuery]


def measure_alerts(
    spark: SparkSession, site: Site, channel: ChannelDescription, alerts: str, rounds: int
) -> list[Figure]:
    """Measure from the append of a check request to the append of its alert.

    Args:
        spark: A session with a slot for each partition.
        site: Kafka.
        channel: The channel.
        alerts: Full name of a topic of one partition, which keeps the broker's time.
        rounds: How often both run, in turn.
    """
    runs = {
        name: partial(_run, spark, site, channel, alerts, begin)
        for name, begin in {"real time": start, "micro-batches": _start_batches}.items()
    }
    found = interleave(runs, rounds, warm=True)
    return [
        Figure(
            f"alert_in_real_time_p{percent}_ms",
            f"append of a check request → append of its alert, `watch --real-time`, p{percent}",
            "ms",
            "the same query in micro-batches, one after the other",
            [percentile(milliseconds, percent) for milliseconds in found["real time"]],
            [percentile(milliseconds, percent) for milliseconds in found["micro-batches"]],
        )
        for percent in _PERCENTILES
    ]


def _run(spark: SparkSession, site: Site, channel: ChannelDescription, alerts: str, begin: Start) -> list[float]:
    """Milliseconds until each alert; the first ones, of a query that still starts, do not count."""
    with tempfile.TemporaryDirectory(prefix="outbox-watch-") as folder, closing(_reader(site, alerts)) as reader:
        query = begin(spark, _settings(site, alerts, folder))
        try:
            ask, told = partial(_ask, Producer(site.kafka()), site, channel), _told(reader)
            while next(told) is None:
                ask()
            while next(told) is not None:  # those of the start that are still under way
                pass
            return list(itertools.islice(_milliseconds(ask, told), RECORDS))
        finally:
            query.stop()


def _milliseconds(ask: Callable[[], None], told: Iterator[float | None]) -> Iterator[float]:
    """Of one check request after the other.

    Raises:
        TimeoutError: One was not told of.
    """
    while True:
        ask()
        end = time.monotonic() + _LONGEST_SECONDS
        while (milliseconds := next(told)) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"no alert within {_LONGEST_SECONDS} s")
        yield milliseconds
        time.sleep(PAUSE_SECONDS)


def _ask(producer: Producer, site: Site, channel: ChannelDescription) -> None:
    """Send a check request that causes an alert."""
    id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
    checked = WatchSettings.model_fields["checked"].default
    request = CheckRequest(id_, "orders", Truth.ROW, channel.half.id, 0, Positions.first(1), 0, 0, checked)
    producer.produce(site.channel.check_topic, request.encode(), b"orders")
    producer.flush()


def _told(reader: Consumer) -> Iterator[float | None]:
    """Milliseconds until each alert came, by the brokers' clock; None where none came for a while."""
    while True:
        message = reader.poll(1)
        if message is None:
            yield None
        elif message.error() is None:
            yield message.timestamp()[1] - json.loads(message.value() or b"")["since_ms"]


def _reader(site: Site, topic: str) -> Consumer:
    """Return a consumer of the only partition of a topic, from its end."""
    consumer = Consumer({**site.kafka(), "group.id": f"{site.name}-alerts", "fetch.queue.backoff.ms": 1})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    return consumer


def _settings(site: Site, alerts: str, folder: str) -> WatchSettings:
    given = {"bootstrap_servers": site.bootstrap_servers, "channel": site.name, "alerts_topic": alerts}
    return WatchSettings.model_validate({**given, "real_time": True, "checkpoint": folder, "trigger_seconds": 30})


def _start_batches(spark: SparkSession, settings: WatchSettings) -> StreamingQuery:
    """As `start()`, with a batch as soon as the one before is done."""
    channel = settings.channel_names()
    options = source_options(settings, [channel.check_topic, channel.discard_topic])
    records = spark.readStream.format("kafka").options(**options).option("startingOffsets", "latest").load()
    sink = urgent_alerts(records, channel, settings.checked).writeStream.format("kafka")
    sink = sink.options(**sink_options(settings)).option("checkpointLocation", settings.checkpoint_path)
    return sink.outputMode("update").trigger(processingTime="0 seconds").start()
