"""The settings of Debezium's outbox router on a Kafka Connect of one worker. Pure text, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from stack.ports import HOST

CONNECTOR = "outbox"
POLL_MS = "poll.interval.ms"
DEFAULT_POLL_MS = 500
"""Debezium's own, which a variant that does not set it has."""

_COLUMNS = (
    "id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL,"
    " aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload bytea"
)
"""The router's default columns."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How Debezium is set.

    Args:
        worker: Settings of Kafka Connect over its defaults.
        connector: Settings of the connector over its defaults.
    """

    name: str
    words: str
    worker: Mapping[str, object] = field(default_factory=dict)
    connector: Mapping[str, object] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """Its outbox table: each variant has one of its own."""
        return f"debezium_{self.name}"


DEFAULT = Variant("default", "Debezium as it comes")
TUNED = Variant(
    "tuned",
    "Debezium tuned",
    worker={"offset.flush.interval.ms": 1_000},
    connector={
        POLL_MS: 10,
        "max.batch.size": 16_384,
        "max.queue.size": 65_536,
        "producer.override.enable.idempotence": "true",
        "producer.override.max.in.flight.requests.per.connection": 5,
        "producer.override.batch.size": 256 * 1024,
        "producer.override.linger.ms": 5,
    },
)
"""It asks its queue much more often, and its producer pipelines."""


def worker_properties(
    variant: Variant, bootstrap_servers: str, plugins: Path, offsets: Path, port: int
) -> dict[str, object]:
    """Return the settings of Kafka Connect's one worker."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "plugin.path": plugins,
        "offset.storage.file.filename": offsets,
        "listeners": f"http://{HOST}:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        **variant.worker,
    }


def connector_properties(variant: Variant, postgres_url: str) -> dict[str, object]:
    """Return the settings of the connector: the value as it is in the table, routed by its column `aggregatetype`."""
    database = conninfo_to_dict(postgres_url)
    return {
        "name": CONNECTOR,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": 1,
        "database.hostname": database["host"],
        "database.port": database["port"],
        "database.user": database["user"],
        "database.password": database["password"],
        "database.dbname": database["dbname"],
        "topic.prefix": variant.table,
        "plugin.name": "pgoutput",
        "slot.name": variant.table,
        "publication.name": variant.table,
        "publication.autocreate.mode": "disabled",
        "table.include.list": f"public.{variant.table}",
        "snapshot.mode": "no_data",
        "value.converter": "io.debezium.converters.BinaryDataConverter",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": "${routedByValue}",
        **variant.connector,
    }


def properties(settings: Mapping[str, object]) -> str:
    """Return a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def table_statements(variant: Variant) -> list[str]:
    """Return the outbox table with the router's default columns, its publication, and the slot that keeps its log."""
    table = variant.table
    return [
        f"CREATE TABLE {table} ({_COLUMNS})",
        f"CREATE PUBLICATION {table} FOR TABLE {table}",
        f"SELECT pg_create_logical_replication_slot('{table}', 'pgoutput')",
    ]


def drop_statements(variant: Variant) -> list[str]:
    """Return what undoes `table_statements`."""
    table = variant.table
    return [
        f"SELECT pg_drop_replication_slot('{table}')",
        f"DROP PUBLICATION {table}",
        f"DROP TABLE {table}",
    ]
