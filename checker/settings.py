"""Settings of the checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from checker.rules.breaker import Policy
from outbox._service.channels.channel_tables import DEFAULT_DATABASE
from outbox._service.settings import (
    CheckerDatabase,
    Milliseconds,
    PostgresSettings,
    ServiceSettings,
    Switch,
    Unit,
    refuse_ours,
)

_OURS = {
    "acks": "a decision must be stored by all in-sync replicas",
    "enable.auto.commit": "offsets of check requests are committed as they are handed on",
    "enable.idempotence": "a retried decision must not overtake a later one",
    "group.id": "it derives from the channel",
    "transactional.id": "decisions are not sent in Kafka transactions",
}


class DatabaseSettings(CheckerDatabase):
    """One database and the producer groups that write to it, with its circuit breaker."""

    def policy(self) -> Policy | None:
        """When its circuit breaker opens; None: it has none."""
        if self.breaker == "off":
            return None
        return Policy() if self.breaker_limit is None else Policy(self.breaker_limit)


class CheckerSettings(PostgresSettings, ServiceSettings):
    """Settings of the checker; see `ServiceSettings` for where they come from.

    One database: `OUTBOX_POSTGRES_URL`. Several: `databases` in the TOML file, by name.
    """

    MOST_USED = (
        "bootstrap_servers",
        "channel",
        "profile",
        "postgres_url",
        "postgres_url_file",
        "table_schema",
        "table_prefix",
        "purge",
        "http_port",
        "log_level",
    )

    synchronous_standby: bool = Field(
        default=False, description="Require that each COMMIT waits for a standby; refuse to start otherwise."
    )
    databases: dict[str, DatabaseSettings] = Field(
        default_factory=dict, description="Several databases, by name, as tables of the TOML file."
    )
    breaker: Switch = Field("on", description="off: roll back a group's transactions, however many have no row.")
    breaker_limit: Annotated[int, Unit("transactions")] = Field(
        Policy().limit,
        ge=1,
        description="Maximum transactions newer than the group's last committed row that are rolled back before the "
        "breaker opens.",
    )

    purge: bool = Field(True, description="Whether rows of settled transactions are deleted.")
    upkeep_interval_ms: Milliseconds = Field(
        600_000, ge=100, description="Pause between two walks over the callback tables, for purge and settlement audit."
    )
    keep_settled_ms: Milliseconds = Field(
        86_400_000, ge=1, description="Age up to which rows of settled transactions are kept."
    )
    keep_tombstones_ms: Milliseconds = Field(
        2_592_000_000, ge=86_400_000, description="Age up to which rollback rows are kept; older ones are deleted."
    )
    settlement_max_age_ms: Milliseconds = Field(
        600_000, ge=0, description="Age at which a committed transaction that is not delivered is reported."
    )

    @field_validator("kafka")
    @classmethod
    def _refuse_ours(cls, kafka: dict[str, str]) -> dict[str, str]:
        return refuse_ours(kafka, _OURS)

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        counts = Counter(pattern for database in self.all_databases().values() for pattern in database.groups)
        doubled = sorted(pattern for pattern, count in counts.items() if count > 1)
        if doubled:
            raise ValueError(f"producer groups {', '.join(doubled)} are given to more than one database")
        return self

    def all_databases(self) -> dict[str, DatabaseSettings]:
        """Return the databases by name, with all defaults filled in."""
        return {
            name: database.model_copy(
                update={
                    "durability": database.durability or self.profile,
                    "breaker": database.breaker or self.breaker,
                    "breaker_limit": database.breaker_limit or self.breaker_limit,
                }
            )
            for name, database in (self.databases | self._single()).items()
        }

    def exclusive_tables(self) -> Iterable[tuple[str, Hashable]]:
        """See `LayeredSettings`: the callback tables."""
        for name, database in self.all_databases().items():
            yield f"database {name}", database.place()

    def _single(self) -> dict[str, DatabaseSettings]:
        if self.postgres_url is None and self.postgres_url_file is None:
            return {}
        fields = {
            "dsn": self.postgres_url,
            "dsn_file": self.postgres_url_file,
            "schema": self.table_schema,
            "table_prefix": self.table_prefix,
            "synchronous_standby": self.synchronous_standby,
        }
        return {DEFAULT_DATABASE: DatabaseSettings.model_validate(fields)}
