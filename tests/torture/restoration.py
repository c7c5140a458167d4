"""What is done to the progress of the table source: set back in the database, deleted in Kafka; and its operator."""

import json
import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from confluent_kafka import KafkaException

from outbox._postgres.ddl import identifier
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import OWNER
from tests.support.commands import run_command
from tests.support.row_statements import SPREAD
from tests.torture.evidence import SOURCE
from tests.torture.lasting import Lasting
from tests.torture.processes import Processes
from tests.torture.set_back import Doubled, SetBack
from tests.torture.strangers import is_away
from tests.torture.world import World

_A_WHILE = (2.0, 15.0)
"""How old the state is to which the tables are set back."""

_DELIVERED_SECONDS = 60.0
"""So long a restore waits for a batch that was delivered since the backup, so that it undoes one."""

_PAUSE_SECONDS = 0.2
_LOCK_WAIT = "5s"
_END_MS = 5_000

_BACKUP: LiteralString = (
    "CREATE SCHEMA IF NOT EXISTS backup; DROP TABLE IF EXISTS backup.message, backup.source;"
    " CREATE TABLE backup.message AS SELECT * FROM {message}; CREATE TABLE backup.source AS SELECT * FROM {source}"
)
_LOCK: LiteralString = "LOCK TABLE {source}, {message}, {discarded}, {delivered} IN SHARE ROW EXCLUSIVE MODE"
_RESTORE: LiteralString = (
    "DELETE FROM {discarded} WHERE (xid, created_at, id) IN (SELECT xid, created_at, id FROM backup.message);"
    f" {SPREAD};"
    " DELETE FROM {delivered} WHERE (xids[1], starts[1]) IN (SELECT xid, created_at FROM backup.message);"
    " INSERT INTO {message} OVERRIDING SYSTEM VALUE SELECT * FROM backup.message ON CONFLICT DO NOTHING;"
    " UPDATE {source} AS now SET batch = was.batch, nonce = was.nonce, delivered = was.delivered,"
    " delivered_nonce = was.delivered_nonce, ({batch}) = (SELECT {batch} FROM backup.source)"
    " FROM backup.source AS was"
)
_NUMBERS: LiteralString = (
    "SELECT was.batch, was.delivered, now.delivered FROM {source} AS now, backup.source AS was WHERE now.id = was.id"
)

_ANSWERED = {"resumed", "not halted"}
"""Answers of `resume` after which there is nothing to do until a relay halts again."""


class SourceCruelty(Lasting):
    """Faults of the source's progress: its operator waits for the halt (I15), looks what was served, and resumes."""

    def __init__(self, world: World, processes: Processes, chance: random.Random) -> None:
        super().__init__()
        self.found: list[str] = []  # what contradicts I15
        self._was_hurt = False
        self._needs_operator = False
        self._set_back: SetBack | Doubled | None = None
        self._answered: frozenset[str] = frozenset()
        self._world = world
        self._processes = processes
        self._chance = chance
        self._one_at_a_time = threading.Lock()
        self._table = MessageTable(world.site.tables)

    @property
    def is_well(self) -> bool:
        """Whether an operator has done all that the faults so far ask for."""
        return not self._needs_operator

    @contextmanager
    def without_operator(self) -> Iterator[bool]:
        """Let the operator wait during a fault, and look after halts from then on; yields whether all is well now."""
        with self._one_at_a_time:
            self._was_hurt = True
            yield not self._needs_operator

    def ask_for_operator(self) -> None:
        """Let the operator resume the source even if no relay has halted yet; only inside `without_operator()`."""
        self._needs_operator = True

    def expect(self, halt: Doubled) -> None:
        """Let the operator wait until a relay has halted; only inside `without_operator()`."""
        self._set_back = halt

    def has_halted(self) -> bool:
        return self._set_back is None or self._set_back.halts(self._processes.halts())

    def restore(self) -> None:
        """Bring back the progress and the rows of some seconds ago; what came since stays. It ends all sessions."""
        if self._needs_operator:
            return
        try:
            with self._connect() as connection:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.execute(self._table.compose(_BACKUP))
            self._healing.wait(self._chance.uniform(*_A_WHILE))
            self._wait_for_a_batch()
            with self._one_at_a_time:
                self._set_tables_back()
        except psycopg.Error as error:
            if not is_away(error):
                raise
            self.outcomes[f"set-backs that were given up: {type(error).__name__}"] += 1

    def _wait_for_a_batch(self) -> None:
        """Wait until a batch that the backup does not know was delivered."""
        deadline = time.monotonic() + _DELIVERED_SECONDS
        with self._connect() as connection:
            connection.autocommit = True
            while not self._healing.wait(_PAUSE_SECONDS) and time.monotonic() < deadline:
                batch, _, proven = self._numbers(connection)
                if proven > batch:
                    return

    def _set_tables_back(self) -> None:
        if self._needs_operator:
            return
        with self._connect() as connection:
            connection.execute(self._table.compose(_LOCK))
            self._end_owner(connection)
            set_back = SetBack(*self._numbers(connection), self._processes.halts())
            connection.execute(self._table.compose(_RESTORE))
            self._needs_operator = self._was_hurt = True  # before COMMIT, whose answer may be lost
        self.faults["message table restored to an earlier state"] += 1
        if set_back.undone:
            self._set_back = set_back
        self.outcomes["set-backs that undid " + ("delivered batches" if set_back.undone else "no delivered batch")] += 1

    def _numbers(self, connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
        """Newest and delivered batch of the backup, and the delivered batch now."""
        row = connection.execute(self._table.compose(_NUMBERS)).fetchone()
        return row or (0, 0, 0)  # before the first batch

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._world.site.postgres_url, options=f"-c lock_timeout={_LOCK_WAIT}")

    def _end_owner(self, connection: psycopg.Connection[Any]) -> None:
        names = self._world.site.tables
        owner = connection.execute(OWNER, {"source": identifier(names.schema, names.source)}).fetchone()
        if owner is not None:
            connection.execute("SELECT pg_terminate_backend(%s, %s)", (owner[0], _END_MS))

    def drop_progress(self) -> None:
        with self._one_at_a_time:
            if self._needs_operator:
                return
            with self._processes.down("relay"):
                self._needs_operator = self._was_hurt = True
                self._delete_group()

    def _delete_group(self) -> None:
        service = self._world.channel.channel.table_group(SOURCE)
        try:
            self._world.site.delete_group(service)
        except KafkaException:  # a broker is down; it may be deleted all the same
            return
        self.faults["progress of the table source deleted in Kafka"] += 1

    def operate(self) -> None:
        """Resume the source if a fault or a halt asks for it, until that is done; not before the first fault (I3)."""
        if not self._was_hurt:
            return
        with self._one_at_a_time:
            halts = self._processes.halts()
            if not (self._needs_operator or halts - self._answered):
                return
            if not self.has_halted():
                return
            answer = self._resume()
            if answer.get("outcome") in _ANSWERED:
                self._look_at(answer)
                # A former owner that still commits its batch halts the source again: then a relay says so.
                self._needs_operator, self._answered = False, halts

    def _resume(self) -> dict[str, Any]:
        """Run the command; its document, empty if it has none."""
        tables = {SOURCE: {"dsn": self._world.site.postgres_url, "table_prefix": self._world.site.name}}
        words = ("resume", "--source", SOURCE, "--skip-delivered", "--yes", "--json")
        try:
            result = run_command(self._world.site, *words, environ={"OUTBOX_TABLES": json.dumps(tables)})
        except subprocess.TimeoutExpired:
            self.outcomes["resume: no answer within a minute"] += 1
            return {}
        answer: dict[str, Any] = json.loads(result.stdout) if result.stdout else {}
        outcome = answer.get("outcome") or reason(result.stderr)
        self.outcomes[f"resume ended with {result.returncode}: {outcome}"] += 1
        return answer

    def _look_at(self, answer: Mapping[str, Any]) -> None:
        """Compare the numbers that the command found with those that the set-back left behind."""
        set_back, self._set_back = self._set_back, None
        if set_back is None:
            return
        name = "set-backs of delivered batches" if isinstance(set_back, SetBack) else "copies of the database"
        self.outcomes[f"{name} that halted a relay"] += 1
        if answer["halted"] and (problem := set_back.contradiction(answer["batch"], answer["delivered"])):
            self.found.append(problem)

    def take_found(self) -> list[str]:
        found, self.found = self.found, []
        if not self.has_halted():
            found.append(f"{self._set_back}, has halted no relay")
        return found


def reason(printed: str) -> str:
    """The beginning of a command's error, up to where it names what differs each time."""
    found = re.search(r"^outbox: ([^:;,.\n]*)", printed, re.MULTILINE)
    return found[1] if found else "no reason"
