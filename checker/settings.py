"""Settings of the checker."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, BaseModel, Field, SecretStr, field_validator

from outbox.service.settings import Milliseconds, ServiceSettings, Unit, refuse_ours
from outbox.settings import TableNames

_OURS = {
    "acks": "a decision must be stored by all in-sync replicas",
    "enable.auto.commit": "offsets of check requests are committed as they are handed on",
    "enable.idempotence": "a retried decision must not overtake a later one",
    "group.id": "it derives from the channel",
    "transactional.id": "decisions are not sent in Kafka transactions",
}


class DatabaseSettings(BaseModel):
    """One database and the producer groups that write to it."""

    dsn: SecretStr = Field(description="Connection string of the checker's role.")
    groups: tuple[str, ...] = Field(("*",), description="Producer groups: exact names, or prefixes that end in '*'.")
    table_schema: str = Field("public", alias="schema", description="Schema of the callback tables.")
    table_prefix: str = Field("outbox", description="Beginning of their names.")

    def tables(self) -> TableNames:
        """Where the callback tables are."""
        return TableNames(self.table_schema, self.table_prefix)


class CheckerSettings(ServiceSettings):
    """Settings of the checker; see `ServiceSettings` for where they come from.

    One database: `OUTBOX_POSTGRES_URL`. Several: `databases` in the TOML file, by name.
    """

    postgres_url: SecretStr | None = Field(None, description="The database of all groups, if there is only one.")
    table_schema: str = Field(
        "public", validation_alias=AliasChoices("OUTBOX_SCHEMA", "schema"), description="Schema of its callback tables."
    )
    table_prefix: str = Field("outbox", description="Beginning of their names.")
    databases: dict[str, DatabaseSettings] = Field(
        default_factory=dict, description="Several, by name, as tables of the TOML file."
    )
    batch: Annotated[int, Unit("requests")] = Field(5_000, ge=1, description="Check requests read at once.")

    purge: bool = Field(True, description="Whether rows of settled transactions are deleted.")
    purge_interval: Milliseconds = Field(60_000, ge=100, description="Pause between two walks of the purge.")
    keep_settled: Milliseconds = Field(
        86_400_000, ge=1, description="Age up to which rows of settled transactions are kept."
    )
    keep_tombstones: Milliseconds = Field(
        2_592_000_000, ge=86_400_000, description="Age up to which tombstones are kept; older ones go by age alone."
    )
    settlement_interval: Milliseconds = Field(600_000, ge=100, description="Pause between two settlement audits.")
    settlement_max_age: Milliseconds = Field(
        600_000, ge=0, description="Age at which a committed transaction that is not delivered is reported."
    )

    @field_validator("kafka")
    @classmethod
    def _refuse_ours(cls, kafka: dict[str, str]) -> dict[str, str]:
        return refuse_ours(kafka, _OURS)

    def all_databases(self) -> dict[str, DatabaseSettings]:
        """The databases by name."""
        if self.postgres_url is None:
            return self.databases
        single = DatabaseSettings.model_validate(
            {"dsn": self.postgres_url, "schema": self.table_schema, "table_prefix": self.table_prefix}
        )
        return {**self.databases, "default": single}
