"""Faults of topics and services: a real topic below min.insync.replicas, and committed offsets that Kafka dropped."""

import random
import time
from collections.abc import Callable

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from outbox._kafka.groups import commit_missing, committed_checkpoints
from outbox.errors import ConfigurationError
from tests.support.commands import run_command
from tests.torture.evidence import TOPICS
from tests.torture.lasting import Lasting, until_done
from tests.torture.leaders import Leaders
from tests.torture.processes import Processes
from tests.torture.world import BROKERS, World

_A_WHILE = (2.0, 15.0)
_EMPTY_SECONDS = 30.0
"""The broker removes the members of killed relays after their session of 6 s."""
_RESTORE_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


class TopicCruelty(Lasting):
    """Faults of topics and services, until `heal()`; the relays are held down while their offsets are gone."""

    def __init__(self, world: World, processes: Processes, chance: random.Random, leaders: Leaders) -> None:
        super().__init__()
        self._world = world
        self._processes = processes
        self._chance = chance
        self._leaders = leaders

    def deliver_refused(self) -> None:
        """Deliver what was decided in the discard topic while its real topic was away, as an operator does."""
        words = ("discarded", "deliver", "--all", "--reason", "topic_unavailable", "--yes")
        result = run_command(self._world.site, *words)
        self.outcomes[f"discarded deliver ended with {result.returncode}"] += 1

    def starve(self) -> None:
        """Ask more in-sync replicas of one real topic than there are brokers; all others go on."""
        topic = self._world.site.topic(self._chance.choice(TOPICS[:-1]))
        self._require_in_sync(topic, BROKERS + 1)
        self.faults["real topic below min.insync.replicas"] += 1
        try:
            self._healing.wait(self._chance.uniform(*_A_WHILE))
        finally:
            self._require_in_sync(topic, None)

    def _require_in_sync(self, topic: str, replicas: int | None) -> None:
        way = AlterConfigOpType.DELETE if replicas is None else AlterConfigOpType.SET
        entry = ConfigEntry("min.insync.replicas", str(replicas or ""), incremental_operation=way)
        change = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
        with self._leaders.kept():
            admin = self._world.site.admin
            _until_done(lambda: [one.result() for one in admin.incremental_alter_configs(change).values()])

    def drop_offsets(self) -> None:
        """Delete the relays' group while they are down, see `channel create` refuse (I1), and restore the offsets."""
        channel, site = self._world.channel, self._world.site
        service = channel.channel.relay_group
        places = [
            (topic.name, n) for topic in (channel.half, channel.op, channel.verdict) for n in range(channel.partitions)
        ]
        with self._processes.down("relay"):
            deadline = time.monotonic() + _EMPTY_SECONDS
            while not self._is_empty(service) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
            try:
                kept = committed_checkpoints(site.kafka(), service, places)
                site.delete_group(service)
            except (KafkaException, ConfigurationError):
                return  # a member is still there, or a checkpoint is held back: nothing was deleted
            self.faults["committed offsets of the relays deleted"] += 1
            created = run_command(site, "channel", "create")
            self.outcomes[f"channel create without offsets ended with {created.returncode}"] += 1
            initial = {place: TopicPartition(*place, one.offset, one.metadata) for place, one in kept.items()}
            _until_done(lambda: commit_missing(site.kafka(), service, initial))

    def _is_empty(self, service: str) -> bool:
        (future,) = self._world.site.admin.describe_consumer_groups([service]).values()
        try:
            return not future.result().members
        except KafkaException:
            return False


def _until_done(step: Callable[[], object]) -> None:
    until_done(step, _RESTORE_SECONDS, (KafkaException, ConfigurationError))
