"""Settings of `replay`."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from outbox._service.settings import Unit, refuse_ours
from outbox.protocol.identifiers import UUID_PATTERN
from outbox.protocol.names import is_internal_topic, is_topic_name
from spark_jobs.records.audit_verdicts import REPORTED, Verdict
from spark_jobs.replaying.kafka_transaction import OURS
from spark_jobs.replaying.lanes import PartitionBy
from spark_jobs.replaying.selection import Selection
from spark_jobs.runtime.settings import JobSettings, names_in

MOST_IDS = 10_000

_ID = re.compile(rf"{UUID_PATTERN}(/(0|[1-9][0-9]{{0,17}}))?")


class ReplaySettings(JobSettings):
    """Settings of `replay`.

    It writes with librdkafka, whose properties `kafka` holds; `kafka_java` is not needed.
    """

    MOST_USED = (
        "replay_id",
        "table",
        "ids",
        "where",
        "verdicts",
        "findings",
        "target",
        "dry_run",
        "bootstrap_servers",
        "partition_by",
    )

    job_id: str = Field(
        "replay",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$",
        description="Id of the job: in the names of its application and Kafka groups.",
    )
    replay_id: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$",
        description="Names the replay for ever: what it has written, it never writes again.",
    )
    table: str = Field(description="Output of land: the folder of the tables.")
    ids: str = Field("", description="Message ids and transaction ids, separated by commas; --ids @FILE reads them.")
    where: str = Field("", description="Condition in SQL over the columns of the table.")
    verdicts: str = Field("", description="Verdicts of an audit, separated by commas.")
    findings: str = Field("", description="Folder of that audit's report, the one that has its window's name.")
    target: str = Field("", description="Topic to write to. Default: each record's own.")
    partition_by: PartitionBy = Field(
        PartitionBy.KEY, description="What chooses the partition: key, as in a Java producer, or original."
    )
    include_replays: bool = Field(
        default=False, description="Send also what an earlier replay has sent, and was landed."
    )
    dry_run: bool = Field(default=False, description="Show what would be written, and write nothing.")
    transaction_rows: Annotated[int, Unit("records")] = Field(
        10_000, ge=1, le=100_000, description="Most records in a Kafka transaction."
    )

    @field_validator("kafka")
    @classmethod
    def _refuse_ours(cls, kafka: dict[str, str]) -> dict[str, str]:
        return refuse_ours(kafka, OURS)

    @field_validator("ids")
    @classmethod
    def _check_ids(cls, ids: str) -> str:
        given = names_in(ids)
        if wrong := [id_ for id_ in given if not _ID.fullmatch(id_)]:
            raise ValueError(
                f"{wrong[0][:80]!r} is neither a message id (<transaction id>/<number>) nor a transaction id. "
                "Correct or remove it."
            )
        if len(given) > MOST_IDS:
            raise ValueError(f"{len(given)} ids are too many. Name at most {MOST_IDS}, or select with where.")
        return ids

    @field_validator("verdicts")
    @classmethod
    def _check_verdicts(cls, verdicts: str) -> str:
        for name in names_in(verdicts):
            if name not in set(Verdict):
                raise ValueError(f"{name!r} is no verdict. Name one of {', '.join(REPORTED)}.")
            if name not in REPORTED:
                raise ValueError(
                    f"{name} is no finding, because an audit keeps only what is wrong. "
                    f"Name one of {', '.join(REPORTED)}."
                )
        return verdicts

    @field_validator("target")
    @classmethod
    def _check_target(cls, target: str) -> str:
        if target and not is_topic_name(target):
            raise ValueError("not a topic name that Kafka allows. Use letters, digits, dot, underscore and hyphen.")
        return target

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not (self.ids or self.where.strip() or self.verdicts):
            raise ValueError("nothing is selected. Give ids, where or verdicts; --where true is everything.")
        if bool(self.verdicts) != bool(self.findings):
            raise ValueError("one of verdicts and findings is missing. Give both: which verdicts, and of which audit.")
        if self.target and is_internal_topic(self.target, self.channel_names()):
            raise ValueError(f"target {self.target} is an internal topic. Choose another topic.")
        return self

    @property
    def name(self) -> str:
        """Name of the application."""
        return f"outbox-{self.job_id}-{self.replay_id}"

    def selection(self) -> Selection:
        """Which records are selected."""
        return Selection(names_in(self.ids), self.where, names_in(self.verdicts), self.include_replays)
