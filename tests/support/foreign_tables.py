"""Tables that an application made for itself, in each layout, with each type of id, deleted from or marked."""

import json
from dataclasses import dataclass
from typing import Any

import psycopg

from outbox._postgres.foreign_source import ForeignSource
from outbox._rules.foreign_layout import QualifiedName
from outbox.settings import TableNames
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE

ROUTED = "${routedByValue}"

_DEBEZIUM = (
    "CREATE TABLE {table} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL,"
    " aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb,"
    " place bigint GENERATED ALWAYS AS IDENTITY, {mark} timestamptz)"
)
_MAPPING = (
    "CREATE TABLE {table} (event_id {type}, destination text, about text, body bytea, extra jsonb, shard integer,"
    " happened_at timestamptz, owner text, written_at timestamptz DEFAULT clock_timestamp(), {mark} boolean)"
)
_IDS = {
    "bigint": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "uuid": "uuid PRIMARY KEY DEFAULT gen_random_uuid()",
    "text": "text PRIMARY KEY DEFAULT 'event \\\"' || gen_random_uuid() || '\"'",
}


@dataclass(frozen=True)
class Kind:
    layout: str
    id: str
    after: str

    def __str__(self) -> str:
        return f"{self.layout}-{self.id}-{self.after}"

    def table(self, site: Site) -> str:
        return f"{site.name}_{self.layout}_{self.id}_{self.after}"

    def create(self, site: Site, prefix: str = "") -> None:
        """Create the table, its index, and what the relay needs beside it, with another prefix than the site's name."""
        table = self.table(site)
        text = _DEBEZIUM if self.layout == "debezium" else _MAPPING
        order = {"debezium": "place, id", "mapping": "event_id" if self.id == "bigint" else "written_at, event_id"}
        waits = {"debezium": "WHERE sent IS NULL", "mapping": "WHERE sent IS NOT TRUE"}
        with site.connect() as connection:
            run(connection, text.format(table=table, type=_IDS[self.id], mark="sent"))
            where = waits[self.layout] if self.after == "mark" else ""
            run(connection, f"CREATE INDEX ON {table} ({order[self.layout]}) {where}")
            ForeignSource(TableNames("public", prefix or site.name), QualifiedName("public", table)).create(connection)

    def settings(self, site: Site) -> dict[str, Any]:
        mark = {"after": "mark", "mark_column": "sent"} if self.after == "mark" else {}
        common = {
            "dsn": site.postgres_url,
            "table_prefix": site.name,
            "layout": self.layout,
            "message_table": f"public.{self.table(site)}",
            "topic": f"{site.name}.{ROUTED}",
            **mark,
        }
        if self.layout == "debezium":
            return {**common, "columns": {"order": "place"}, "additional_placement": "type:header:eventType"}
        columns = {"id": "event_id", "topic": "destination", "key": "about", "value": "body", "headers": "extra"}
        columns |= {"partition": "shard", "timestamp": "happened_at", "service": "owner"}
        return {**common, "columns": columns if self.id == "bigint" else {**columns, "order": "written_at"}}

    def insert(self, connection: psycopg.Connection, site: Site, topic: str, key: str, value: str) -> None:
        table = self.table(site)
        if self.layout == "debezium":
            statement = f"INSERT INTO {table} (aggregatetype, aggregateid, type, payload) VALUES (%s, %s, 'Made', %s)"
            connection.execute(statement.encode(), (topic, key, value))
        else:
            statement = f"INSERT INTO {table} (destination, about, body, owner) VALUES (%s, %s, %s, 'orders')"
            connection.execute(statement.encode(), (topic, key, value.encode()))

    def waiting(self, site: Site) -> int:
        column = "sent IS NULL" if self.layout == "debezium" else "sent IS NOT TRUE"
        with site.connect() as connection:
            return count(connection, f"SELECT count(*) FROM {self.table(site)} WHERE {column}")

    def wait_empty(self, site: Site) -> None:
        wait_until(lambda: self.waiting(site) == 0, explain=site.logs)


KINDS = [
    Kind(layout, id_, after)
    for layout, id_ in (("debezium", "uuid"), ("mapping", "bigint"), ("mapping", "uuid"), ("mapping", "text"))
    for after in ("delete", "mark")
]


def relay_settings(settings: dict[str, Any], **more: str) -> dict[str, str]:
    return variables({SOURCE: settings}, **more)


def variables(tables: dict[str, dict[str, Any]], **more: str) -> dict[str, str]:
    return {"OUTBOX_TABLES": json.dumps(tables), "OUTBOX_BATCH_MESSAGES": "50", **more}


def run(connection: psycopg.Connection[Any], statement: str, *values: Any) -> list[Any]:
    """Run a statement; return its rows, none of one that has no result."""
    cursor = connection.execute(statement.encode(), values or None)
    return cursor.fetchall() if cursor.description else []


def count(connection: psycopg.Connection[Any], statement: str) -> int:
    return int(run(connection, statement)[0][0])
