"""Settings of the jobs: command line first, then environment (`OUTBOX_…`), then the file that `OUTBOX_CONFIG` names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from outbox._security.secret_files import with_secrets
from outbox._service.settings import (
    Flag,
    KafkaProperties,
    KafkaSettings,
    LogSettings,
    Repeatable,
    Unit,
)
from outbox.protocol.names import is_topic_name

READ_COMMITTED = "read_committed"

INTERNAL = ("half", "op", "verdict", "check", "discard")
"""A channel's own topics, as the setting `internal` names them."""


def names_in(text: str) -> tuple[str, ...]:
    """Return the names that a text separates by commas, each once."""
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _check_topic_names(text: str) -> str:
    if not all(map(is_topic_name, names_in(text))):
        raise ValueError("not a list of topic names that Kafka allows. Separate them by commas.")
    return text


TopicNames = Annotated[str, AfterValidator(_check_topic_names)]
"""Topics, separated by commas."""


class SparkSettings(LogSettings):
    """What every job has: its id, and settings of Spark."""

    job_id: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$",
        description="Id of the job: in the names of its application, query, checkpoint and Kafka groups.",
    )
    spark: KafkaProperties = Field(
        default_factory=dict, repr=False, description="More settings of Spark (spark.…), over the job's own."
    )

    @property
    def name(self) -> str:
        """Name of the application and of its query, and beginning of its Kafka groups."""
        return f"outbox-{self.job_id}"


class JobSettings(SparkSettings, KafkaSettings):
    """What the jobs have that read Kafka.

    The inherited `kafka` holds properties of librdkafka; Spark reads through Kafka's Java client, which has names of
    its own for security and much else, so these are separate.
    """

    kafka_java: Annotated[KafkaProperties, Flag("--kafka"), Repeatable("NAME=VALUE")] = Field(
        default_factory=dict,
        repr=False,
        description="More properties of Kafka's Java client, with which Spark reads: TLS, SASL, fetch sizes. "
        "A secret may be in a file (sasl.jaas.config_file).",
    )

    @field_validator("kafka_java")
    @classmethod
    def _check_isolation(cls, properties: dict[str, str]) -> dict[str, str]:
        if properties.get("isolation.level", READ_COMMITTED) != READ_COMMITTED:
            raise ValueError(
                "isolation.level cannot be set, because records of aborted transactions are no messages. Remove it."
            )
        return properties

    def java_connection(self) -> dict[str, str]:
        """Properties for any Java client of this job, with the secrets of files."""
        return {"bootstrap.servers": self.bootstrap_servers, **with_secrets(self.kafka_java)}


class OutputSettings(SparkSettings):
    """What jobs have that write or keep the tables of `land`."""

    job_id: str = Field(
        "land",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$",
        description="Id of the job: in the names of its checkpoint, query and Kafka groups.",
    )
    output: str = Field(description="Folder of the tables; any file system that Spark supports.")


class CheckpointedSettings(OutputSettings):
    """What jobs have that use the checkpoint of `land`."""

    checkpoint: str = Field(description="Folder of checkpoints; the job's own is the one with its id in there.")

    @property
    def checkpoint_path(self) -> str:
        """The job's own checkpoint."""
        return f"{self.checkpoint.rstrip('/')}/{self.job_id}"


class RetireSettings(CheckpointedSettings):
    """Settings of `land retire`; it needs no Kafka."""

    @property
    def name(self) -> str:
        """Name of the application."""
        return f"outbox-{self.job_id}-retire"


class LandSettings(CheckpointedSettings, JobSettings):
    """Settings of `land`."""

    MOST_USED = (
        "topics",
        "output",
        "checkpoint",
        "bootstrap_servers",
        "available_now",
        "trigger_seconds",
        "max_offsets_per_trigger",
        "accept_gap",
        "internal",
        "channel",
    )

    topics: TopicNames = Field("", description="Topics to land, separated by commas.")
    internal: str = Field(
        "", description="Topics of the channel itself to land besides: half, op, check, discard, separated by commas."
    )
    available_now: bool = Field(default=False, description="Land what is there now and end.")
    trigger_seconds: Annotated[float, Unit("s")] = Field(
        10.0, ge=0, description="Time from the start of one batch to the start of the next."
    )
    max_offsets_per_trigger: Annotated[int | None, Unit("offsets")] = Field(
        1_000_000, ge=1, description="Most offsets in one batch; markers and aborted records take offsets too."
    )
    min_offsets_per_trigger: Annotated[int | None, Unit("offsets")] = Field(
        None,
        ge=1,
        description="Fewest offsets that are worth a batch, unless one was long ago.",
    )
    max_trigger_delay_seconds: Annotated[int, Unit("s")] = Field(
        900, ge=1, description="Maximum time that a batch waits for min_offsets_per_trigger."
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        "earliest", description="Where a job begins that has no checkpoint yet."
    )
    accept_gap: Annotated[TopicNames, Repeatable("TOPIC")] = Field(
        "", description="Topics of which the job goes on without records that Kafka removed before they were landed."
    )
    prometheus_file: Path | None = Field(
        None, description="File *.prom of the node exporter's text file collector, on the driver's machine."
    )

    @field_validator("internal")
    @classmethod
    def _check_internal(cls, internal: str) -> str:
        if wrong := sorted(set(names_in(internal)) - set(INTERNAL)):
            raise ValueError(f"{wrong[0]!r} is no internal topic. Name some of {', '.join(INTERNAL)}.")
        return internal

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.topic_names():
            raise ValueError("no topic is named. Name at least one, in topics or internal.")
        if unknown := sorted(set(names_in(self.accept_gap)) - set(self.topic_names())):
            raise ValueError(
                f"accept_gap names topic {unknown[0]}, which is not landed. Name it in topics, too, or remove it."
            )
        most, fewest = self.max_offsets_per_trigger, self.min_offsets_per_trigger
        if most is not None and fewest is not None and fewest > most:
            raise ValueError("min_offsets_per_trigger exceeds max_offsets_per_trigger. Lower it, or raise the other.")
        return self

    def topic_names(self) -> tuple[str, ...]:
        """All topics, each once."""
        return tuple(dict.fromkeys((*names_in(self.topics), *self.internal_names())))

    def internal_names(self) -> tuple[str, ...]:
        """Those of them that are the channel's own, in whichever setting they are named."""
        channel = self.channel_names()
        own = {name: f"{channel.name}.{name}" for name in INTERNAL}
        asked = {own[name] for name in names_in(self.internal)} | (set(own.values()) & set(names_in(self.topics)))
        return tuple(sorted(asked))

    def rate_options(self) -> dict[str, str]:
        """Options of Spark's source for the size of a batch."""
        options = {}
        if self.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        # A run that ends when all is landed waits for nothing.
        if self.min_offsets_per_trigger is not None and not self.available_now:
            options["minOffsetsPerTrigger"] = str(self.min_offsets_per_trigger)
            options["maxTriggerDelay"] = f"{self.max_trigger_delay_seconds}s"
        return options


class MaintainSettings(OutputSettings):
    """Settings of `land maintain`; it needs no Kafka."""

    @property
    def name(self) -> str:
        """Name of the application."""
        return f"outbox-{self.job_id}-maintain"
