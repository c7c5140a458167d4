"""Settings of the relay."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from outbox._kafka.topic_contract import Contract
from outbox._rules.patterns import NO_LIST, NO_LIST_FIX, lacks_list
from outbox._service.membership import static_name
from outbox._service.settings import ServiceSettings
from outbox._settings.declared import RelayFields
from outbox._settings.properties import refuse_properties
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


class RelaySettings(RelayFields, ServiceSettings):
    """Settings of the relay, with what derives from them."""

    def skips_lost(self, partition: int) -> bool:
        """Return whether a half partition goes on without halves that are gone from the topic."""
        return str(partition) in self.skip_lost.split(",")

    def check(self) -> None:
        """Refuse properties for Kafka that the relay sets itself."""
        super().check()
        refuse_properties(self.kafka, _OURS)

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
        name = self.group_instance_id or static_name(self.bootstrap_servers, self.channel_names().relay_group)
        return {
            **({"group.instance.id": name} if name else {}),
            "session.timeout.ms": 20_000,  # it outlasts a coordinator that dies: Kafka misses a broker after 9 s
            "heartbeat.interval.ms": 2_000,
            "partition.assignment.strategy": "range",  # half p and op p go to one member (H6)
        }

    def batch_policy(self) -> BatchPolicy:
        return BatchPolicy(self.batch_messages)


def require_allow_list(profile: str, allowed: Mapping[str, Sequence[str]] | None, channel: str = "") -> None:
    """Require an allow-list in production, be it one by which every service may write to every topic."""
    if lacks_list(profile, allowed):
        where = f"channel {channel}: " if channel else ""
        raise ConfigurationError(f"{where}{NO_LIST}: {NO_LIST_FIX}")
