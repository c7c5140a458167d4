"""What others change about the tables of table mode while relays deliver them, and take back after a while."""

import random
from collections.abc import Callable, Mapping
from typing import Any, LiteralString

import psycopg

from outbox._postgres.message_table import MessageTable
from tests.torture.application import poison
from tests.torture.evidence import TOPICS
from tests.torture.lasting import Lasting, until_done
from tests.torture.processes import Processes
from tests.torture.restoration import SourceCruelty
from tests.torture.strangers import is_away
from tests.torture.world import World

_A_WHILE = (5.0, 20.0)
_TAKEN_BACK_SECONDS = 180.0
_LOCK_WAIT = "5s"

_STRANGER: LiteralString = (
    "CREATE SCHEMA IF NOT EXISTS stranger; CREATE SEQUENCE IF NOT EXISTS stranger.swallowed;"
    " CREATE OR REPLACE FUNCTION stranger.swallow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
    " $$ BEGIN PERFORM nextval('stranger.swallowed'); RETURN NULL; END $$"
)
"""The sequence counts what the trigger swallowed, also in a transaction that is rolled back for it."""

_TRIGGER: LiteralString = "FOR EACH ROW EXECUTE FUNCTION stranger.swallow()"
_SECURITY: LiteralString = "ALTER TABLE {message} ENABLE ROW LEVEL SECURITY"

CHANGES: Mapping[str, tuple[LiteralString, LiteralString]] = {
    "trigger that keeps delivered rows": (
        f"CREATE TRIGGER stranger BEFORE DELETE ON {{message}} {_TRIGGER}",
        "DROP TRIGGER IF EXISTS stranger ON {message}",
    ),
    "trigger that drops evidence": (
        f"CREATE TRIGGER stranger BEFORE INSERT ON {{delivered}} {_TRIGGER}",
        "DROP TRIGGER IF EXISTS stranger ON {delivered}",
    ),
    "trigger that drops dead letters": (
        f"CREATE TRIGGER stranger BEFORE INSERT ON {{discarded}} {_TRIGGER}",
        "DROP TRIGGER IF EXISTS stranger ON {discarded}",
    ),
    "row security without a policy": (_SECURITY, "ALTER TABLE {message} DISABLE ROW LEVEL SECURITY"),
    "row security with a policy that only shows": (
        f"{_SECURITY}; CREATE POLICY stranger ON {{message}} FOR SELECT USING (true)",
        "DROP POLICY IF EXISTS stranger ON {message}; ALTER TABLE {message} DISABLE ROW LEVEL SECURITY",
    ),
}
"""How each is made, and taken back."""

_PUBLISH: LiteralString = "CREATE PUBLICATION stranger FOR ALL TABLES"
_UNPUBLISH: LiteralString = "DROP PUBLICATION IF EXISTS stranger"


class TableChanges(Lasting):
    """Faults that change tables, where a relay may halt; the operator of `source` waits until one is taken back."""

    def __init__(self, world: World, processes: Processes, source: SourceCruelty, chance: random.Random) -> None:
        super().__init__()
        self._world = world
        self._processes = processes
        self._source = source
        self._chance = chance
        self._published_since: int | None = None
        self._table = MessageTable(world.site.tables)
        world.site.sql(_STRANGER)

    def change(self) -> None:
        name = self._chance.choice(sorted(CHANGES))
        make, take_back = CHANGES[name]
        with self._source.without_operator() as is_well:
            if not is_well:
                return
            halts, swallowed = self._processes.halts(), self._swallowed()
            try:
                if self._try(name, make):
                    self.faults[name] += 1
                    self._write_poison()
                    self._healing.wait(self._chance.uniform(*_A_WHILE))
            finally:
                self._until_done(take_back)
            self.outcomes[f"{name}: rows swallowed"] += self._swallowed() - swallowed
            self.outcomes[f"{name}: halts of relays"] += len(self._processes.halts() - halts)

    def publish_all(self) -> None:
        """Make a publication of all tables, as replication tools do; it stays until all is settled."""
        if self._published_since is None and self._try("publication of all tables", _PUBLISH):
            self._published_since = self._batch()
            self.faults["publication of all tables"] += 1

    def end_round(self) -> None:
        """Drop the publication, now that all is settled, and count what was delivered beside it."""
        if self._published_since is not None:
            self.outcomes["batches delivered beside a publication of all tables"] += (
                self._batch() - self._published_since
            )
            self._until_done(_UNPUBLISH)
            self._published_since = None

    def _write_poison(self) -> None:
        """Write a row that nobody can deliver, so that there is a dead letter to drop."""
        site = self._world.site
        self._until_done(lambda connection: connection.execute(poison(site.name, site.topic(TOPICS[0])).encode()))

    def _try(self, name: str, statement: LiteralString) -> bool:
        """Run a statement; return whether it was done, and count it if the server was away or a lock taken."""
        try:
            self._run(statement)
        except psycopg.Error as error:
            if not is_away(error):
                raise
            self.outcomes[f"{name}: given up, {type(error).__name__}"] += 1
            return False
        return True

    def _until_done(self, what: LiteralString | Callable[[psycopg.Connection[Any]], object]) -> None:
        """Repeat while the server is away, or somebody else has the lock."""
        until_done(lambda: self._run(what), _TAKEN_BACK_SECONDS, psycopg.Error, is_away)

    def _run(self, what: LiteralString | Callable[[psycopg.Connection[Any]], object]) -> None:
        options = f"-c lock_timeout={_LOCK_WAIT}"
        with psycopg.connect(self._world.site.postgres_url, options=options) as connection:
            if callable(what):
                what(connection)
            else:
                connection.execute(self._table.compose(what))

    def _swallowed(self) -> int:
        return self._number("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM stranger.swallowed")

    def _batch(self) -> int:
        return self._number("SELECT batch FROM {source}")

    def _number(self, query: LiteralString) -> int:
        found: list[int] = []

        def ask(connection: psycopg.Connection[Any]) -> None:
            row = connection.execute(self._table.compose(query)).fetchone()
            found.append(int(row[0]) if row else 0)

        self._until_done(ask)
        return found[-1]
