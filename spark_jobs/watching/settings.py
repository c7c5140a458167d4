"""Settings of `watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from outbox._service.settings import Milliseconds, Unit
from outbox.protocol.names import is_internal_topic, is_topic_name
from spark_jobs.runtime.settings import JobSettings, TopicNames, names_in
from spark_jobs.watching.frames.alerts import Thresholds

SHORTEST_SECONDS = 5
"""Spark makes no shorter batches in real time."""


class WatchSettings(JobSettings):
    """Settings of `watch`."""

    MOST_USED = (
        "output",
        "topics",
        "channel",
        "bootstrap_servers",
        "available_now",
        "trigger_seconds",
        "prometheus_file",
        "alerts_topic",
        "real_time",
        "checkpoint",
    )

    job_id: str = Field(
        "watch",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$",
        description="Id of the job: in the names of its application and Kafka groups.",
    )
    output: str = Field("", description="Folder of the tables and of what the job must know; not with real_time.")
    topics: TopicNames = Field("", description="Real topics to watch; a message for another one counts as delivered.")
    starting_offsets: Literal["earliest", "latest"] = Field(
        "latest", description="Where a job begins whose output is empty."
    )
    available_now: bool = Field(default=False, description="Watch what is there now, look once, and end.")
    trigger_seconds: Annotated[float, Unit("s")] = Field(
        30.0, ge=0, description="Time from the start of one batch to the start of the next."
    )
    max_offsets_per_batch: Annotated[int, Unit("offsets")] = Field(
        1_000_000, ge=1, description="Most offsets in one batch; markers and aborted records take offsets too."
    )
    keep_batches: Annotated[int, Unit("batches")] = Field(
        100_000, ge=0, description="So many batches stay in the tables; 0: all."
    )
    forget_ms: Milliseconds = Field(
        604_800_000, ge=1, description="Age at which an open half is not waited for any more, and counted as forgotten."
    )
    recent_ms: Milliseconds = Field(
        300_000, ge=60_000, description="Time over which figures are summed for alerts and Prometheus."
    )
    prometheus_file: Path | None = Field(
        None, description="File *.prom of the node exporter's text file collector, on the driver's machine."
    )
    alerts_topic: str = Field("", description="Topic that alerts go to; none: they are only logged.")
    dangling_ms: Milliseconds = Field(
        600_000, ge=0, description="Alert: a half has been undecided for longer than this."
    )
    undelivered_ms: Milliseconds = Field(
        300_000, ge=0, description="Alert: a committed half has not been visible for longer than this."
    )
    hung_ms: Milliseconds = Field(
        60_000, ge=0, description="Alert: an open Kafka transaction has held readers back for longer than this."
    )
    relay_lag_ms: Milliseconds = Field(60_000, ge=0, description="Alert: the relay has not read a half so old.")
    check_percent: Annotated[int, Unit("percent")] = Field(
        20, ge=0, description="Alert: so many check requests were sent for a hundred halves."
    )
    slow_ms: Milliseconds = Field(
        0, ge=0, description="Alert: one message in a hundred took longer than this to become visible; 0: never."
    )
    real_time: bool = Field(default=False, description="Only alerts on single records, within milliseconds.")
    checkpoint: str = Field("", description="Folder of checkpoints, for real_time.")
    checked: Annotated[int, Unit("checks")] = Field(
        3, ge=1, description="Alert of real_time: a transaction is asked about for this time."
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.real_time and not (self.alerts_topic and self.checkpoint):
            raise ValueError("real_time needs alerts_topic and checkpoint. Give both.")
        if not self.real_time and not self.output:
            raise ValueError("output is missing. Name the folder of the tables in it.")
        if self.real_time and self.available_now:
            raise ValueError("real_time goes on until it is stopped. Leave available_now out.")
        if self.real_time and self.trigger_seconds < SHORTEST_SECONDS:
            raise ValueError(
                f"trigger_seconds of real_time is the time between its checkpoints. Give {SHORTEST_SECONDS} at least."
            )
        if self.alerts_topic and not is_topic_name(self.alerts_topic):
            raise ValueError(
                "alerts_topic is not a name that Kafka allows. Use letters, digits, dot, underscore and hyphen."
            )
        channel = self.channel_names()
        for name in (self.alerts_topic, *self.real_topics()):
            if name and is_internal_topic(name, channel):
                raise ValueError(f"{name} is the channel's own, and no real topic. Leave it out.")
        if self.alerts_topic in self.real_topics():
            raise ValueError("alerts_topic is one of the topics that are watched. Name another topic.")
        return self

    def real_topics(self) -> tuple[str, ...]:
        """Return the real topics."""
        return names_in(self.topics)

    def topic_names(self) -> tuple[str, ...]:
        """All topics that are read, and that of the alerts."""
        channel = self.channel_names()
        read = (channel.check_topic, channel.discard_topic) if self.real_time else self.watched_topics()
        return (*read, self.alerts_topic) if self.alerts_topic else read

    def watched_topics(self) -> tuple[str, ...]:
        """Return the topics that batches read: the channel's own, and the real ones."""
        channel = self.channel_names()
        decisions = (channel.op_topic, channel.verdict_topic)
        return (channel.half_topic, *decisions, channel.check_topic, channel.discard_topic, *self.real_topics())

    def thresholds(self) -> Thresholds:
        """From when on something is wrong."""
        return Thresholds(
            self.dangling_ms, self.undelivered_ms, self.hung_ms, self.relay_lag_ms, self.check_percent, self.slow_ms
        )

    @property
    def checkpoint_path(self) -> str:
        """The checkpoint of the real-time alerts."""
        return f"{self.checkpoint.rstrip('/')}/{self.job_id}"
