"""Settings of the relay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator

from outbox._kafka.topic_contract import Contract
from outbox._rules.patterns import NO_LIST, NO_LIST_FIX, lacks_list
from outbox._service.settings import (
    AllowedTopics,
    Bytes,
    CheckAge,
    MessageTables,
    Milliseconds,
    ServiceSettings,
    Unit,
    refuse_ours,
)
from outbox.errors import ConfigurationError
from relay.delivery.rules.allow_list import AllowList
from relay.delivery.rules.topic_gate import GatePolicy
from relay.delivery.rules.volume import BatchPolicy

_OURS = {
    "acks": "a message must be stored by all in-sync replicas before its half is settled",
    "auto.offset.reset": "a checkpoint out of range must stop the relay, not skip or repeat messages",
    "enable.auto.commit": "checkpoints are part of the Kafka transactions",
    "enable.idempotence": "a retried message must not appear twice",
    "group.id": "it derives from the channel",
    "group.instance.id": "it is the setting group_instance_id",
    "group.protocol": "relays use the classic protocol",
    "group.remote.assignor": "half and op partition of one number must go to one relay",
    "isolation.level": "checkpoints are read after open transactions have ended",
    "partition.assignment.strategy": "half and op partition of one number must go to one relay",
    "partitioner": "a key must go where a Java producer would send it",
    "transactional.id": "it derives from the channel",
}


class RelaySettings(CheckAge, MessageTables, AllowedTopics, ServiceSettings):
    """Settings of the relay; see `ServiceSettings` for where they come from."""

    MOST_USED = (
        "bootstrap_servers",
        "channel",
        "profile",
        "http_port",
        "delivery",
        "transaction_timeout_ms",
        "check_interval_ms",
        "batch_messages",
        "log_level",
    )

    check_interval_ms: Milliseconds = Field(
        30_000, ge=1, description="Interval after the first check; doubles after each one."
    )
    check_interval_max_ms: Milliseconds = Field(600_000, ge=1, description="Maximum interval between checks.")
    check_max: Annotated[int, Unit("answers")] = Field(
        15, ge=1, description="UNKNOWN answers after which a transaction is parked."
    )
    undecided_max_age_ms: Milliseconds = Field(
        86_400_000, ge=1, description="Age at which an undecided transaction is parked."
    )
    listener_max_age_ms: Milliseconds = Field(
        7_200_000,
        ge=1,
        description="As undecided_max_age_ms, for transactions that a listener decides; the lower one applies.",
    )
    service_pending_max: Annotated[int, Unit("halves")] = Field(
        100_000,
        ge=1,
        description="Maximum pending halves of a service per partition. Above it, its oldest are parked "
        "and further ones deferred.",
    )
    service_pending_max_bytes: Bytes = Field(
        268_435_456, ge=1, description="Approximate size of a service's pending halves per partition."
    )
    pending_max: Annotated[int, Unit("halves")] = Field(
        200_000, ge=1, description="Maximum pending halves of all services per partition. At the limit, reading pauses."
    )
    body_bytes: Bytes = Field(
        16_777_216, ge=0, description="Approximate size of the bodies kept in memory per partition."
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once",
        description="at_least_once: without Kafka transactions. Must be the same for all relays of a channel.",
    )
    distrusted_checkpoint: Literal["stop", "deliver_again"] = Field(
        "stop",
        description="What to do with a damaged or foreign checkpoint. deliver_again: redeliver its topic (duplicates).",
    )
    skip_lost: str = Field(
        "",
        pattern=r"^(\d+(,\d+)*)?$",
        description="Half partitions, such as 0,3, that continue although halves were deleted from the topic.",
    )
    hanging_transaction: Literal["decide", "abort", "commit"] = Field(
        "decide",
        description="How to end a hanging transaction that blocks a checkpoint. decide: as Kafka decided it. "
        "abort or commit: for one start, if Kafka no longer has its outcome.",
    )
    topic_missing_max_age_ms: Milliseconds = Field(
        60_000,
        ge=0,
        description="Maximum wait for a real topic that is missing, has too few partitions or is not authorized.",
    )
    batch_messages: Annotated[int, Unit("messages")] = Field(
        5_000, ge=1, description="Approximate number of messages in one Kafka transaction."
    )
    group_instance_id: str = Field(
        "", description="Static member name (KIP-345), unique per process: a restart moves no partitions."
    )

    def skips_lost(self, partition: int) -> bool:
        """Return whether a half partition goes on without halves that are gone from the topic."""
        return str(partition) in self.skip_lost.split(",")

    @field_validator("kafka")
    @classmethod
    def _refuse_ours(cls, kafka: dict[str, str]) -> dict[str, str]:
        return refuse_ours(kafka, _OURS)

    def allow_list(self) -> AllowList:
        """Return which services may write to which topics."""
        return AllowList(self.allowed_topics)

    def gate_policy(self) -> GatePolicy:
        """Return how long to wait for an unavailable real topic."""
        return GatePolicy(self.topic_missing_max_age_ms)

    def contract(self) -> Contract:
        """Return the required topic configuration: retention is at least 4 * undecided_max_age_ms, in ms (R23)."""
        return replace(super().contract(), retention_ms=4 * self.undecided_max_age_ms)

    def membership(self) -> dict[str, str | int]:
        """Return the librdkafka properties of a member of the relay's group."""
        static = {"group.instance.id": self.group_instance_id} if self.group_instance_id else {}
        return {
            **static,
            "session.timeout.ms": 20_000,  # it outlasts a coordinator that dies: Kafka misses a broker after 9 s
            "heartbeat.interval.ms": 2_000,
            "partition.assignment.strategy": "range",  # half p and op p go to one member (H6)
        }

    def batch_policy(self) -> BatchPolicy:
        """Return the limits at which a batch is closed."""
        return BatchPolicy(self.batch_messages)


def require_allow_list(profile: str, allowed: Mapping[str, Sequence[str]] | None, channel: str = "") -> None:
    """Require an allow-list in production, be it one by which every service may write to every topic.

    Args:
        channel: Name of the channel, if there are several.
    """
    if lacks_list(profile, allowed):
        where = f"channel {channel}: " if channel else ""
        raise ConfigurationError(f"{where}{NO_LIST}: {NO_LIST_FIX}")
