"""Kafka and Postgres in containers, by testcontainers, for tests with OUTBOX_TEST_STACK=containers."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from testcontainers.community.kafka import KafkaContainer
from testcontainers.community.postgres import PostgresContainer

KAFKA_IMAGE_VARIABLE = "OUTBOX_KAFKA_IMAGE"
POSTGRES_IMAGE_VARIABLE = "OUTBOX_POSTGRES_IMAGE"
KAFKA_IMAGE = "confluentinc/cp-kafka:8.0.0"
POSTGRES_IMAGE = "postgres:17"
ROLE = "outbox"
START_SECONDS = 120

# What the tests expect of a broker beyond what testcontainers sets: the same as the project's own stack.
_KAFKA_SETTINGS = {
    "auto.create.topics.enable": "false",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "offsets.topic.num.partitions": "8",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "200",
}
# Prepared transactions are off by default in Postgres; the tests need a few.
_POSTGRES_COMMAND = "postgres -c max_connections=200 -c max_prepared_transactions=20 -c wal_level=logical"


@dataclass(frozen=True, slots=True)
class Containers:
    bootstrap_servers: str
    postgres_url: str


@contextmanager
def containers() -> Iterator[Containers]:
    """Start a Kafka, of an image from 7.0.0 on that testcontainers knows, and a Postgres; variables name the images."""
    kafka = KafkaContainer(os.environ.get(KAFKA_IMAGE_VARIABLE, KAFKA_IMAGE)).with_kraft()
    for name, value in _KAFKA_SETTINGS.items():
        kafka.with_env(f"KAFKA_{name.replace('.', '_').upper()}", value)
    postgres = PostgresContainer(
        os.environ.get(POSTGRES_IMAGE_VARIABLE, POSTGRES_IMAGE),
        username=ROLE,
        # No word that occurs anywhere else: tests look for it in what is printed.
        password=secrets.token_hex(16),
        dbname=ROLE,
        driver=None,
    )
    postgres.with_command(_POSTGRES_COMMAND)
    with postgres:
        kafka.start(timeout=START_SECONDS)
        try:
            yield Containers(kafka.get_bootstrap_server(), postgres.get_connection_url())
        finally:
            kafka.stop()
