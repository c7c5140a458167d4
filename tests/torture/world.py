"""The tortured world: three brokers, Postgres, proxies before all of them, a channel, tables and topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outbox.channel import ChannelDescription
from stack import Stack
from tests.harness import Site
from tests.proxies.fault import Armed
from tests.proxies.kafka import KafkaProxies
from tests.proxies.loop import LoopThread
from tests.proxies.postgres import PostgresProxy
from tests.torture.application import DDL

BROKERS = 3
PARTITIONS = 4
REAL_PARTITIONS = 3
TOPICS = ("a", "b")

_KAFKA = {
    # What a checkpoint calls settled is compared with when its messages came.
    "log.message.timestamp.type": "LogAppendTime",
}
_CLIENTS = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
_PARKED_AFTER_MS = 8_000
"""So soon an undecided transaction is parked, that parking and late delivery are tortured too."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything but the tortured processes.

    Args:
        stack: The servers.
        site: Channel, tables and topics; its own clients go past the proxies.
        channel: The channel.
        loop: Where the proxies run.
        kafka: The proxies before the brokers.
        postgres: The proxy before Postgres.
        armed: What requests meet there.
    """

    stack: Stack
    site: Site
    channel: ChannelDescription
    loop: LoopThread
    kafka: KafkaProxies
    postgres: PostgresProxy
    armed: Armed

    def settings(self) -> dict[str, str]:
        """What the tortured processes are told: to come through the proxies."""
        return {
            "OUTBOX_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "OUTBOX_POSTGRES_URL": self.postgres.url,
            "OUTBOX_KAFKA": json.dumps(_CLIENTS),
            "OUTBOX_UNDECIDED_MAX_AGE": str(_PARKED_AFTER_MS),
        }

    def places(self) -> list[tuple[str, int]]:
        """The partitions of the real topics."""
        return [(self.site.topic(name), number) for name in TOPICS for number in range(REAL_PARTITIONS)]


@contextmanager
def started() -> Iterator[World]:
    """Start the world; nothing of it is left after the block."""
    armed = Armed()
    with (
        Stack(brokers=BROKERS, proxied=True, kafka_settings=_KAFKA) as stack,
        LoopThread() as loop,
        Site(stack.bootstrap_servers, stack.postgres_url, replication=BROKERS) as site,
    ):
        channel = site.create(*TOPICS, partitions=PARTITIONS)
        with site.connect() as connection:
            connection.execute(DDL.format(name=site.name).encode())
        kafka = KafkaProxies(stack.kafka.proxy_ports, armed.take)
        postgres = PostgresProxy(stack.postgres_url, armed.take)
        loop.run(kafka.start())
        loop.run(postgres.start())
        try:
            yield World(stack, site, channel, loop, kafka, postgres, armed)
        finally:
            loop.run(kafka.stop())
            loop.run(postgres.stop())
