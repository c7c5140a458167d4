"""What is done to the progress of the table source: set back in the database, deleted in Kafka; and its operator."""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections import Counter
from typing import Any, LiteralString

import psycopg
from confluent_kafka import KafkaException

from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import OWNER, source_name
from tests.support.commands import run_command
from tests.torture.evidence import SOURCE
from tests.torture.processes import Processes
from tests.torture.world import World

_A_WHILE = (2.0, 15.0)
"""How old the state is to which the tables are set back."""

_LOCK_WAIT = "5s"
_END_MS = 5_000

_BACKUP: LiteralString = (
    "CREATE SCHEMA IF NOT EXISTS backup; DROP TABLE IF EXISTS backup.message, backup.source;"
    " CREATE TABLE backup.message AS SELECT * FROM {message}; CREATE TABLE backup.source AS SELECT * FROM {source}"
)
_LOCK: LiteralString = "LOCK TABLE {source}, {message}, {discarded}, {delivered} IN SHARE ROW EXCLUSIVE MODE"
_RESTORE: LiteralString = (
    "DELETE FROM {discarded} WHERE id IN (SELECT id FROM backup.message);"
    " DELETE FROM {delivered} WHERE xid IN (SELECT xid FROM backup.message);"
    " INSERT INTO {message} OVERRIDING SYSTEM VALUE SELECT * FROM backup.message ON CONFLICT DO NOTHING;"
    " UPDATE {source} AS now SET batch = was.batch, delivered = was.delivered, ids = was.ids"
    " FROM backup.source AS was"
)


class SourceCruelty:
    """Faults of the table source's progress. After each of them the operator resumes the source.

    Args:
        world: Where.
        processes: The relays.
        chance: What decides.

    Attributes:
        faults: What was done, by name.
        outcomes: What commands answered.
        needs_operator: Whether the source may be halted, so that an operator must look at it now.
    """

    def __init__(self, world: World, processes: Processes, chance: random.Random) -> None:
        self.faults: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.needs_operator = False
        self._was_hurt = False
        self._world = world
        self._processes = processes
        self._chance = chance
        self._healing = threading.Event()
        self._table = MessageTable(world.site.tables)

    def heal(self) -> None:
        """End what lasts."""
        self._healing.set()

    def hurt_again(self) -> None:
        """Let faults last again until the next `heal()`."""
        self._healing.clear()

    def restore(self) -> None:
        """Bring back the progress and the rows of some seconds ago; what came since stays.

        A restore ends all sessions, so it ends that of the owner. Delivered rows are back, and nothing is lost, so
        that all invariants hold. If the database ends meanwhile, nothing is restored.
        """
        if self.needs_operator:
            return
        try:
            with self._connect() as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.execute(self._table.compose(_BACKUP))
            self._healing.wait(self._chance.uniform(*_A_WHILE))
            with self._connect() as connection:
                connection.execute(self._table.compose(_LOCK))
                self._end_owner(connection)
                connection.execute(self._table.compose(_RESTORE))
                self.needs_operator = self._was_hurt = True  # before COMMIT, whose answer may be lost
        except psycopg.Error:
            return
        self.faults["message table restored to an earlier state"] += 1

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._world.site.postgres_url, options=f"-c lock_timeout={_LOCK_WAIT}")

    def _end_owner(self, connection: psycopg.Connection[Any]) -> None:
        names = self._world.site.tables
        owner = connection.execute(OWNER, (source_name(names.schema, names.source),)).fetchone()
        if owner is not None:
            connection.execute("SELECT pg_terminate_backend(%s, %s)", (owner[0], _END_MS))

    def drop_progress(self) -> None:
        """Delete the source's group in Kafka while no relay runs."""
        if self.needs_operator:
            return
        with self._processes.down("relay"):
            self.needs_operator = self._was_hurt = True
            try:
                group = self._world.channel.channel.table_group(SOURCE)
                for future in self._world.site.admin.delete_consumer_groups([group]).values():
                    future.result()
            except KafkaException:  # a broker is down; it may be deleted all the same
                return
        self.faults["progress of the table source deleted in Kafka"] += 1

    def operate(self) -> None:
        """Resume the source, as an operator does when it halts; if that is refused now, it is tried again.

        Nothing happens before the first fault: a source that halts for no reason stays halted (I3).
        """
        if not self._was_hurt:
            return
        tables = {SOURCE: {"dsn": self._world.site.postgres_url, "table_prefix": self._world.site.name}}
        words = ("table", "resume", "--source", SOURCE, "--skip-delivered", "--yes", "--json")
        try:
            result = run_command(self._world.site, *words, environ={"OUTBOX_TABLES": json.dumps(tables)})
        except subprocess.TimeoutExpired:
            return
        outcome = json.loads(result.stdout)["outcome"] if result.returncode == 0 else f"exit code {result.returncode}"
        self.outcomes[f"table resume: {outcome}"] += 1
        # A former owner that still commits its batch halts the source again: the operator looks once more.
        self.needs_operator = outcome != "not halted"
