"""A real Debezium: its Postgres connector with the outbox EventRouter, on a standalone Kafka Connect."""

from __future__ import annotations

import json
import signal
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks.application import Application
from benchmarks.peers.debezium_settings import (
    CONNECTOR,
    Variant,
    connector_properties,
    drop_statements,
    properties,
    table_statements,
    worker_properties,
)
from benchmarks.peers.jars import CONNECT_LOCK, DEBEZIUM_LOCK
from benchmarks.peers.jvm import PeerError, Room, make_room
from outbox._jars.fetch import fetch
from stack.kafka import LOG4J
from stack.ports import HOST
from tests.support.harness import wait_until

CONNECT_OPTIONS = ("-Xmx1g", f"-Dlog4j2.configurationFile={LOG4J}")
_ANSWER_SECONDS = 10.0
_END_SECONDS = 10.0
MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
_INSERT = "INSERT INTO {table} (aggregatetype, aggregateid, type, payload) VALUES (:topic, :key, 'changed', :payload)"
# As an application writes them, in many small transactions.
_FILL = """
DO $$ DECLARE body bytea; BEGIN
  SELECT payload INTO body FROM debezium_body;
  FOR number IN 1..{count} LOOP
    INSERT INTO {table} (aggregatetype, aggregateid, type, payload)
    VALUES ('{topic}', 'key' || number - 1, 'changed', body);
    IF number % {each} = 0 THEN
      COMMIT;
    END IF;
  END LOOP;
END $$
"""

# Without the proxies that the environment may name.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Debezium:
    """One variant of Debezium with its table, and a Kafka Connect of its own."""

    def __init__(self, room: Room, variant: Variant, postgres_url: str, bootstrap_servers: str) -> None:
        self._room = room
        self._postgres_url = postgres_url
        self._insert = text(_INSERT.format(table=variant.table))
        self.variant = variant
        self._port = room.ports.claim()
        worker = worker_properties(
            variant, bootstrap_servers, room.folder / "plugins", room.folder / "offsets", self._port
        )
        self._write("worker", properties(worker))
        self._write("connector", properties(connector_properties(variant, postgres_url)))

    def prepare(self) -> None:
        """Unpack the plugin; make table, publication and slot."""
        (archive,) = fetch(DEBEZIUM_LOCK)
        with tarfile.open(archive) as content:
            content.extractall(self._room.folder / "plugins", filter="data")
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            for statement in table_statements(self.variant):
                connection.execute(statement.encode())

    def start(self) -> None:
        """Start Kafka Connect with the connector, and wait until it reads the slot."""
        files = [str(self._room.folder / f"{name}.properties") for name in ("worker", "connector")]
        self._room.run_java("connect", CONNECT_LOCK, CONNECT_OPTIONS, [MAIN, *files])
        self._room.wait_for("connect", self._reads)

    def kill(self) -> None:
        """Kill Kafka Connect (SIGKILL) and wait until it is gone."""
        self._room.processes.signal("connect", signal.SIGKILL)
        self._room.processes.wait("connect", _END_SECONDS)

    def forget(self) -> None:
        """Drop what `prepare()` made, above all the slot, for which Postgres would keep its log for ever."""
        wait_until(lambda: not self._slot_is_read())
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            for statement in drop_statements(self.variant):
                connection.execute(statement.encode())

    def rest(self) -> None:
        """Stop the connector, in good order; the process stays, warm. What is committed now waits in the slot."""
        self._put("stop")
        self._room.wait_for("connect", lambda: not self._slot_is_read())

    def resume(self) -> None:
        """Let a connector that rests go on, and return at once."""
        self._put("resume")

    def go_on(self) -> None:
        """Let a connector that rests go on, and wait until it reads the slot."""
        self.resume()
        self._room.wait_for("connect", self._reads)

    def fill(self, topic: str, count: int, body: bytes, each: int = 1) -> None:
        """Commit rows, with the keys `key0`, `key1` and so on.

        Args:
            each: Rows in a transaction.
        """
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute("CREATE TEMPORARY TABLE debezium_body (payload bytea)")
            connection.execute("INSERT INTO debezium_body VALUES (%b)", (body,))
            connection.execute(_FILL.format(table=self.variant.table, topic=topic, count=count, each=each).encode())

    def insert(self, application: Application, session: Session, key: bytes) -> None:
        """Tell others, in a session's transaction: a row of Debezium's outbox table."""
        row = {"topic": application.topic, "key": key.decode(), "payload": application.payload}
        session.execute(self._insert, row)

    def _write(self, name: str, content: str) -> None:
        file = self._room.folder / f"{name}.properties"
        file.touch(mode=0o600)  # a password stands in it
        file.write_text(content)

    def _reads(self) -> bool:
        tasks = self._ask("status").get("tasks", [])
        if failed := [task.get("trace", "") for task in tasks if task["state"] == "FAILED"]:
            raise PeerError(f"Debezium's task failed: {failed[0][:2_000]}")
        return bool(tasks) and self._slot_is_read()

    def _slot_is_read(self) -> bool:
        with psycopg.connect(self._postgres_url) as connection:
            query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
            return connection.execute(query, (self.variant.table,)).fetchone() == (True,)

    def _ask(self, what: str) -> dict[str, Any]:
        """Return what Connect says of the connector; nothing while it is not up."""
        try:
            with _opener.open(self._url(what), timeout=_ANSWER_SECONDS) as answer:
                said: dict[str, Any] = json.load(answer)
                return said
        except (OSError, urllib.error.URLError):
            return {}

    def _put(self, what: str) -> None:
        request = urllib.request.Request(self._url(what), method="PUT")  # noqa: S310 - always http
        try:
            _opener.open(request, timeout=_ANSWER_SECONDS).close()
        except OSError as error:
            raise PeerError(f"Kafka Connect does not {what} its connector: {error}") from error

    def _url(self, what: str) -> str:
        return f"http://{HOST}:{self._port}/connectors/{CONNECTOR}/{what}"


@contextmanager
def start_debezium(variant: Variant, postgres_url: str, bootstrap_servers: str) -> Iterator[Debezium]:
    """Run a Debezium that reads its table; remove it and its slot after the block.

    Args:
        bootstrap_servers: Kafka's; topics must exist before rows name them.
    """
    with make_room(f"debezium-{variant.name}") as room:
        debezium = Debezium(room, variant, postgres_url, bootstrap_servers)
        debezium.prepare()
        try:
            debezium.start()
            yield debezium
        finally:
            debezium.kill()
            debezium.forget()
