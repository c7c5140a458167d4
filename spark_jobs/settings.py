"""Settings of the jobs: command line first, then environment (`OUTBOX_…`), then the file that `OUTBOX_CONFIG` names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from outbox.protocol.names import is_topic_name
from outbox.service.settings import KafkaProperties, ServiceSettings

READ_COMMITTED = "read_committed"


class JobSettings(ServiceSettings):
    """What every job has: who it is, how it reaches Kafka, what Spark is told besides.

    The inherited `kafka` holds properties of librdkafka; Spark reads through Kafka's Java client, which has names of
    its own for security and much else, so these stand apart.
    """

    job_id: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$",
        description="Who the job is: its query, its checkpoint and its Kafka groups are named after it.",
    )
    kafka_java: KafkaProperties = Field(
        default_factory=dict, repr=False, description="More properties of Kafka's Java client, for Spark's source."
    )
    spark: KafkaProperties = Field(
        default_factory=dict, repr=False, description="More settings of Spark (spark.…), over the job's own."
    )

    @field_validator("kafka_java")
    @classmethod
    def _check_isolation(cls, properties: dict[str, str]) -> dict[str, str]:
        if properties.get("isolation.level", READ_COMMITTED) != READ_COMMITTED:
            raise ValueError("isolation.level cannot be set: records of aborted transactions are no messages")
        return properties

    @property
    def name(self) -> str:
        """Name of the application and of its query, and beginning of its Kafka groups."""
        return f"outbox-{self.job_id}"

    def java_connection(self) -> dict[str, str]:
        """Properties for any Java client of this job."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.kafka_java}


class LandSettings(JobSettings):
    """Settings of `land`."""

    job_id: str = Field("land", pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$", description="Who the job is.")
    topics: str = Field(description="Topics to land, separated by commas.")
    output: str = Field(description="Folder of the table; any file system that Spark knows.")
    checkpoint: str = Field(description="Folder of checkpoints; the job's own is the one with its id in there.")
    available_now: bool = Field(default=False, description="Land what is there now and end.")
    trigger_seconds: float = Field(10.0, ge=0, description="Pause between the starts of two batches, s.")
    max_offsets_per_trigger: int | None = Field(
        1_000_000, ge=1, description="Most offsets in one batch; markers and aborted records take offsets too."
    )
    starting_offsets: Literal["earliest", "latest"] = Field(
        "earliest", description="Where a job begins that has no checkpoint yet."
    )

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: str) -> str:
        names = _names(topics)
        if not names or not all(map(is_topic_name, names)):
            raise ValueError("name at least one topic, several separated by commas, as Kafka allows them")
        return topics

    def topic_names(self) -> tuple[str, ...]:
        """The topics, each once."""
        return _names(self.topics)

    @property
    def checkpoint_path(self) -> str:
        """The job's own checkpoint."""
        return f"{self.checkpoint.rstrip('/')}/{self.job_id}"


def _names(topics: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for text in topics.split(",") if (name := text.strip())))
