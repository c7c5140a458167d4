"""The settings of the jobs, each once; see `declared`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from outbox._security.secret_files import with_secrets
from outbox._settings.declared import CheckedDatabases, KafkaSettings, LogSettings
from outbox._settings.layers import LayeredSettings
from outbox._settings.setting import PAIR, REQUIRED, setting
from outbox.protocol.names import is_topic_name

READ_COMMITTED = "read_committed"


def names_in(text: str) -> tuple[str, ...]:
    """Return the names that a text separates by commas, each once."""
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _check_topics(text: str) -> None:
    if not all(map(is_topic_name, names_in(text))):
        raise ValueError("not a list of topic names that Kafka allows. Separate them by commas")


class SparkSettings(LogSettings):
    """What every job has: a name, and settings of Spark."""

    JOB: ClassVar[str]
    """The job's command."""

    spark: dict[str, str] = setting({}, "More settings of Spark (spark.…), over the job's own.")

    @property
    def name(self) -> str:
        """Name of the application and of its query, and beginning of its Kafka groups."""
        return f"outbox-{self.JOB}"


class JobSettings(SparkSettings, KafkaSettings):
    """What the jobs have that read Kafka.

    The inherited `kafka` holds properties of librdkafka; Spark reads through Kafka's Java client, which has names of
    its own for security and much else, so these are separate.
    """

    kafka_java: dict[str, str] = setting(
        {},
        "More properties of Kafka's Java client, with which Spark reads: TLS, SASL, fetch sizes. "
        "A secret may be in a file (sasl.jaas.config_file).",
        option="--kafka",
        each=PAIR,
    )

    def check(self) -> None:
        """Refuse records of aborted transactions."""
        super().check()
        if self.kafka_java.get("isolation.level", READ_COMMITTED) != READ_COMMITTED:
            raise ValueError(
                "isolation.level cannot be set, because records of aborted transactions are no messages. Remove it."
            )

    def java_connection(self) -> dict[str, str]:
        """Properties for any Java client of this job, with the secrets of files."""
        return {"bootstrap.servers": self.bootstrap_servers, **with_secrets(self.kafka_java)}


class TopicSettings(LayeredSettings):
    """Which topics a job reads."""

    topics: str = setting(
        "",
        "Topics to land; of the audit: real topics to search besides those that the halves name. Commas between.",
        check=_check_topics,
    )

    def topic_names(self) -> tuple[str, ...]:
        """All topics, each once."""
        return names_in(self.topics)


class OutputSettings(SparkSettings):
    """Where a job writes."""

    output: str = setting(
        REQUIRED, "Folder of the tables of land, or of the reports of the audit; any file system that Spark supports."
    )


class CheckpointSettings(OutputSettings):
    """What jobs have that use the checkpoint of `land`."""

    JOB = "land"

    checkpoint: str = setting(REQUIRED, "Folder of the job's checkpoint.")


class MaintainSettings(OutputSettings, reader="land maintain"):
    """What `land maintain` reads; it needs no Kafka."""

    JOB = "land-maintain"
    OPTIONS: ClassVar[tuple[str, ...]] = ("output",)


class LandSettings(TopicSettings, CheckpointSettings, JobSettings, reader="land"):
    """What `land` reads."""

    OPTIONS: ClassVar[tuple[str, ...]] = (
        *("topics", "output", "checkpoint", "bootstrap_servers", "available_now", "trigger_seconds"),
        *("accept_gap", "kafka_java", "current"),
    )

    available_now: bool = setting(default=False, text="Land what is there now and end.")
    trigger_seconds: float = setting(10.0, "Time from the start of one batch to the start of the next.", least=0)
    max_offsets_per_trigger: int | None = setting(
        1_000_000,
        "Most offsets in one batch; markers and aborted records take offsets too.",
        unit="offsets",
        least=1,
    )
    accept_gap: str = setting(
        "",
        "Topics of which the job goes on without records that Kafka removed before they were landed.",
        each="TOPIC",
        check=_check_topics,
    )
    current: str = setting(
        "",
        "Topics of which a table has the newest record of each key; a record without a value deletes its key.",
        each="TOPIC",
        check=_check_topics,
    )
    prometheus_file: Path | None = setting(
        None, "File *.prom of the node exporter's text file collector, on the driver's machine."
    )

    def check(self) -> None:
        super().check()
        if not self.topic_names():
            raise ValueError("no topic is named. Name at least one in topics.")
        if f"{self.checkpoint}/".startswith(f"{self.output.rstrip('/')}/"):
            raise ValueError("checkpoint is in output, where maintenance deletes it. Name a folder beside output.")
        for name in ("accept_gap", "current"):
            if unknown := sorted(set(names_in(getattr(self, name))) - set(self.topic_names())):
                raise ValueError(
                    f"{name} names topic {unknown[0]}, which is not landed. Name it in topics, too, or remove it."
                )

    def rate_options(self) -> dict[str, str]:
        """Options of Spark's source for the size of a batch."""
        most = self.max_offsets_per_trigger
        return {} if most is None else {"maxOffsetsPerTrigger": str(most)}


class AuditFields(CheckedDatabases, TopicSettings, OutputSettings, JobSettings, reader="audit"):
    """What `audit` reads; the databases are those of the checker."""

    JOB = "audit"
    OPTIONS: ClassVar[tuple[str, ...]] = (
        *("output", "window_start", "window_end", "last", "grace_ms", "topics", "bootstrap_servers", "channel"),
        *("postgres_url_file", "kafka_java"),
    )

    window_start: str = setting(
        "", "Start of the window, by append time of halves: ISO 8601, or ms since 1970.", option="--from"
    )
    window_end: str = setting("", "End of the window (exclusive), by append time of halves.", option="--to")
    last: Literal["hour", "day"] = setting("hour", "Without a start: the last hour or day that is closed, UTC.")
    grace_ms: int = setting(600_000, "How long a message may take to be decided and delivered.", least=0)
