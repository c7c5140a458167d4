"""Settings of the relay."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from outbox.service.settings import ServiceSettings, refuse_ours
from relay.bodies import BodyPolicy
from relay.overdue import CheckPolicy
from relay.pacing import BatchPolicy
from relay.parking import ParkingPolicy

_OURS = {
    "acks": "a message must be stored by all in-sync replicas before its half is settled",
    "auto.offset.reset": "a checkpoint out of range must stop the relay, not skip or repeat messages",
    "enable.auto.commit": "checkpoints are part of the Kafka transactions",
    "enable.idempotence": "a retried message must not appear twice",
    "group.id": "it derives from the channel",
    "group.instance.id": "it is the setting group_instance_id, so that workers of one host get one each",
    "group.protocol": "it is the setting group_protocol",
    "group.remote.assignor": "half and op partition of one number must go to one relay",
    "isolation.level": "checkpoints are read after open transactions have ended",
    "partition.assignment.strategy": "half and op partition of one number must go to one relay",
    "partitioner": "a key must go where a Java producer would send it",
    "transactional.id": "it derives from the channel",
}


class RelaySettings(ServiceSettings):
    """Settings of the relay; see `ServiceSettings` for where they come from."""

    transaction_timeout: int = Field(6_000, ge=1, description="Age of a half at its first check, ms.")
    check_interval: int = Field(30_000, ge=1, description="Pause after the first check, ms; doubles each time.")
    check_interval_max: int = Field(600_000, ge=1, description="Longest pause between checks, ms.")
    check_max: int = Field(15, ge=1, description="UNKNOWN answers after which a transaction is parked.")
    undecided_max_age: int = Field(86_400_000, ge=1, description="Age at which an undecided one is parked, ms.")
    group_pending_max: int = Field(
        100_000,
        ge=1,
        description="Halves of a producer group that may pend in one partition; then its oldest are parked.",
    )
    group_pending_bytes_max: int = Field(268_435_456, ge=1, description="Their bytes, about.")
    pending_max: int = Field(
        200_000, ge=1, description="Halves of all groups that may pend in one partition; then reading pauses."
    )
    body_age: int = Field(30_000, ge=0, description="Age at which the body of a pending half leaves memory, ms.")
    body_bytes: int = Field(16_777_216, ge=0, description="Bodies kept in memory for one partition, bytes about.")
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once", description="at_least_once: no Kafka transactions; the same for all relays of a channel."
    )
    ordering: Literal["key", "none"] = Field("key", description="Order per (group, ordering key), or none.")
    batch_messages: int = Field(5_000, ge=1, description="Messages in one Kafka transaction, about.")
    batch_bytes: int = Field(16_777_216, ge=1, description="Their bytes, about.")
    batch_age: int = Field(10, ge=0, description="So long a batch waits for company under load, ms; else not at all.")

    workers: int = Field(
        1, ge=1, le=1_000, description="Relay processes on this host; their http_port counts up from the first one."
    )
    group_protocol: Literal["classic", "consumer"] = Field(
        "classic", description="How relays share partitions out: consumer is Kafka's newer protocol (KIP-848)."
    )
    group_instance_id: str = Field(
        "", description="Name of this relay that stays (KIP-345): its restart moves no partitions. Unique per process."
    )

    @field_validator("kafka")
    @classmethod
    def _refuse_ours(cls, kafka: dict[str, str]) -> dict[str, str]:
        return refuse_ours(kafka, _OURS)

    def in_steps(self) -> bool:
        """Whether an assignment changes in steps instead of as a whole."""
        return self.group_protocol == "consumer"

    def membership(self) -> dict[str, str | int]:
        """Librdkafka properties of a member of the relay's group."""
        static: dict[str, str | int] = {"group.instance.id": self.group_instance_id} if self.group_instance_id else {}
        if self.group_protocol == "consumer":  # times are the broker's affair then: consumer.session.timeout.ms
            return {**static, "group.protocol": "consumer", "group.remote.assignor": "range"}  # H6
        classic: dict[str, str | int] = {
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 2_000,
            "partition.assignment.strategy": "range",  # half p and op p go to one member (H6)
        }
        return {**static, **classic}

    def check_policy(self) -> CheckPolicy:
        """When to ask."""
        return CheckPolicy(self.transaction_timeout, self.check_interval, self.check_interval_max)

    def batch_policy(self) -> BatchPolicy:
        """What closes a batch."""
        return BatchPolicy(self.batch_messages, self.batch_bytes, self.batch_age)

    def body_policy(self) -> BodyPolicy:
        """When bodies leave memory."""
        return BodyPolicy(self.body_age, self.body_bytes)

    def parking_policy(self) -> ParkingPolicy:
        """When to park."""
        return ParkingPolicy(
            self.group_pending_max,
            self.group_pending_bytes_max,
            self.undecided_max_age,
            self.check_max,
            self.pending_max,
        )
