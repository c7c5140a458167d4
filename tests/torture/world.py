"""The tortured world: three brokers, Postgres and its standby, proxies before them, a channel, tables and topics."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from outbox._kafka.channel import ChannelDescription
from outbox._postgres.message_table import MessageTable
from stack import Stack
from tests.proxies.fault import Armed
from tests.proxies.kafka import KafkaProxies
from tests.proxies.loop import LoopThread
from tests.proxies.postgres import PostgresProxy
from tests.support.harness import Site
from tests.support.plain_records import TOPIC as PLAIN
from tests.torture.application import DDL
from tests.torture.evidence import SHORT, SOURCE, TOPICS
from tests.torture.hostile.channel import HostileChannel

BROKERS = 3
PARTITIONS = 4
REAL_PARTITIONS = 3

# What a checkpoint calls settled is compared with when its messages came.
_KAFKA = {"log.message.timestamp.type": "LogAppendTime"}
_POSTGRES = {
    # So few that strangers can use them up.
    "max_connections": "60",
    "max_locks_per_transaction": "10",
}
_ASYNCHRONOUS = {"synchronous_standby_names": ""}
_CLIENTS = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
_PARKED_AFTER_MS = 8_000
"""So soon an undecided transaction is parked, that parking and late delivery are tortured too."""


@dataclass(frozen=True, slots=True)
class World:
    stack: Stack
    site: Site  # channel, tables and topics; its own clients go past the proxies
    channel: ChannelDescription
    loop: LoopThread
    kafka: KafkaProxies
    postgres: PostgresProxy
    armed: Armed
    loses_commits: bool  # whether commits do not wait for the standby
    hostile: HostileChannel | None = None  # the second channel of all relays and checkers; None: there is none

    def follow_the_primary(self) -> None:
        """After a failover: lead all clients to the new primary, past the proxy or through it."""
        self.site.postgres_url = self.stack.postgres_url
        self.loop.run(self.postgres.follow(self.stack.postgres_url))
        if self.hostile is not None:
            self.hostile.follow()

    def settings(self) -> dict[str, str]:
        """What the tortured processes are told: to come through the proxies."""
        return {
            "OUTBOX_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "OUTBOX_POSTGRES_URL": self.postgres.url,
            "OUTBOX_KAFKA": json.dumps(_CLIENTS),
            "OUTBOX_TABLES": self.sources(self.postgres.url),
            "OUTBOX_UNDECIDED_MAX_AGE_MS": str(_PARKED_AFTER_MS),
        }

    def sources(self, url: str) -> str:
        """The table source of a relay, whose role is no superuser, so that row security binds it."""
        return json.dumps({SOURCE: {"dsn": as_relay(self.site, url), "table_prefix": self.site.name}})

    def places(self) -> list[tuple[str, int]]:
        return [(self.site.topic(name), number) for name in TOPICS for number in range(REAL_PARTITIONS)]


def as_relay(site: Site, url: str) -> str:
    """How the relay's role connects, which has the superuser's password."""
    return url.replace(f"//{urlsplit(url).username}:", f"//{site.name}_relay:", 1)


def _create_short(site: Site) -> None:
    brokers = range(1, BROKERS + 1)
    replicas = [[brokers[number % BROKERS], brokers[(number + 1) % BROKERS]] for number in range(REAL_PARTITIONS)]
    site.create_topic(SHORT, REAL_PARTITIONS, {"min.insync.replicas": "2"}, replicas)


@contextmanager
def started(*, loses_commits: bool = False, hostile: bool = False) -> Iterator[World]:
    """Start the world; nothing of it is left after the block."""
    armed = Armed()
    postgres_settings = {**_POSTGRES, **(_ASYNCHRONOUS if loses_commits else {})}
    with (
        Stack(
            brokers=BROKERS, standby=True, proxied=True, kafka_settings=_KAFKA, postgres_settings=postgres_settings
        ) as stack,
        LoopThread() as loop,
        Site(stack.bootstrap_servers, stack.postgres_url, replication=BROKERS) as site,
    ):
        channel = site.create(*TOPICS[:-1], PLAIN, partitions=PARTITIONS)
        _create_short(site)
        with site.connect() as connection:
            role = f"{site.name}_relay"
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{urlsplit(site.postgres_url).password}'".encode())
            table = MessageTable(site.tables)
            table.create(connection, [table.relay_grant(role)])
            connection.execute(DDL.format(name=site.name).encode())
        kafka = KafkaProxies(stack.kafka.proxy_ports, armed.take)
        postgres = PostgresProxy(stack.postgres_url, armed.take)
        loop.run(kafka.start())
        loop.run(postgres.start())
        second = HostileChannel(site, postgres.url, as_relay(site, postgres.url), loop, BROKERS) if hostile else None
        try:
            yield World(stack, site, channel, loop, kafka, postgres, armed, loses_commits, second)
        finally:
            if second is not None:
                second.close()
            loop.run(kafka.stop())
            loop.run(postgres.stop())
