"""Two teams on one Kafka and in one database, each with the rights that the commands print, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outbox._kafka.channel import ChannelDescription
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.message_table import MessageTable
from outbox._rules.role_rights import Role
from stack import Stack
from tests.attacks.observer import Observer
from tests.attacks.witness import Witness
from tests.support.harness import Service
from tests.support.message_rows import SOURCE
from tests.support.probes import free_port
from tests.support.secured import PASSWORD, SecuredSite

CARELESS = "careless"
"""A service of team-a whose entry in the allow-list is `*`: only Kafka's rights restrict it."""

PLATFORM_TOPICS = ("_schemas", "connect-configs", "x-changelog")

RELAY = {
    "OUTBOX_TRANSACTION_TIMEOUT_MS": "2000",
    "OUTBOX_CHECK_INTERVAL_MS": "500",
    "OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "500",
}


@dataclass
class Team:
    """One team: its channel, tables, topics, users, roles, relay and checker."""

    stack: Stack
    name: str
    site: SecuredSite = field(init=False)
    description: ChannelDescription = field(init=False)
    application: str = field(init=False)
    """Name of the application's user of Kafka."""
    port: int = field(init=False)
    """Where its relay shows its metrics."""

    def __post_init__(self) -> None:
        self.port = free_port()
        self.site = SecuredSite(self.stack.bootstrap_servers, self.stack.postgres_url, name=self.name, stack=self.stack)
        self.description = self.site.create("orders", "rows", partitions=1)
        self._create_roles()
        roles = (Role.APPLICATION, Role.LISTENER)
        self.application = self.site.user(*roles, topic=self.topics, service=[self.service])
        self._relay = self.site.user(Role.RELAY, topic=self.topics, source=[SOURCE])
        self._checker = self.site.user(Role.CHECKER)

    @property
    def service(self) -> str:
        return f"{self.name}-shop"

    @property
    def topics(self) -> list[str]:
        return [self.site.topic("orders"), self.site.topic("rows")]

    @cached_property
    def incarnation(self) -> str:
        with psycopg.connect(self.url("application")) as connection:
            found = CallbackTable(self.site.tables).incarnation(connection)
        assert found is not None
        return found

    def role(self, what: str) -> str:
        return f"{self.name}_{what}"

    def _create_roles(self) -> None:
        callbacks, messages = CallbackTable(self.site.tables), MessageTable(self.site.tables)
        application, relay, checker = map(self.role, ("application", "relay", "checker"))
        with self.site.connect() as connection:
            for name in (application, relay, checker):
                query = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                connection.execute(query.format(sql.Identifier(name), sql.Literal(PASSWORD)))
            callbacks.create(connection, [callbacks.application_grant(application), callbacks.checker_grant(checker)])
            grants = [messages.application_grant(application), messages.relay_grant(relay)]
            messages.create(connection, [*grants, messages.checker_grant(checker)])

    def url(self, what: str) -> str:
        return make_conninfo(self.site.postgres_url, user=self.role(what), password=PASSWORD)

    def start_relay(self) -> Service:
        tables = {SOURCE: {"dsn": self.url("relay"), "table_prefix": self.name}}
        allowed = {self.service: [f"{self.name}.*"], CARELESS: ["*"]}
        extra = {"OUTBOX_TABLES": json.dumps(tables), "OUTBOX_ALLOWED_TOPICS": json.dumps(allowed)}
        with self.site.acting(self._relay):
            port = {"OUTBOX_HTTP_PORT": str(self.port), "OUTBOX_POSTGRES_URL": None}
            return self.site.relay(extra={**RELAY, **extra, **port})

    def start_checker(self) -> Service:
        with self.site.acting(self._checker):
            return self.site.checker(extra={"OUTBOX_POSTGRES_URL": self.url("checker")})

    def kafka(self) -> dict[str, str]:
        with self.site.acting(self.application):
            return self.site.kafka()


@dataclass
class Teams:
    """Both teams while they work. team-a is the attacker."""

    stack: Stack
    a: Team
    b: Team
    observer: Observer
    witness: Witness
    relay: Service
    begins: list[tuple[float, str]] = field(default_factory=list)
    """When each attack began, monotonic seconds, and its name."""

    @cached_property
    def admin(self) -> AdminClient:
        """An admin client of team-a's application, which lives as long as its requests."""
        return AdminClient({**self.a.kafka()})

    @classmethod
    @contextmanager
    def working(cls, stack: Stack) -> Iterator[Teams]:
        a, b = Team(stack, "team_a"), Team(stack, "team_b")
        a.site.create_named_topics(*PLATFORM_TOPICS)
        watched = [*a.topics, *b.topics, a.site.channel.discard_topic, b.site.channel.discard_topic, *PLATFORM_TOPICS]
        observer = Observer(a.site.kafka(), watched)
        with a.site, b.site, observer.running():
            a.start_relay()
            a.start_checker()
            relay = b.start_relay()
            b.start_checker()
            with Witness(b.site, b.kafka(), b.url("application"), b.service).running() as witness:
                yield cls(stack, a, b, observer, witness, relay)
