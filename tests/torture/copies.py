"""A copy of the database, restored from a dump, whose relay serves it under the name of the original's source."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg

from outbox._postgres.ddl import identifier
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import OWNER
from outbox.testing import read_committed
from stack.postgres_binaries import postgres_binaries
from tests.support.harness import Service, Site
from tests.torture.evidence import SOURCE
from tests.torture.lasting import Lasting
from tests.torture.processes import Processes, halts_of
from tests.torture.restoration import SourceCruelty
from tests.torture.set_back import Doubled
from tests.torture.strangers import is_away
from tests.torture.world import World, as_relay

ROWS = 5
"""Rows that only the copy has, for a topic of its own."""

TOPIC = "copy"
_DATABASE = "copy"
_PATIENCE_SECONDS = 60.0
"""So long a relay may take for a batch, and to halt because of the copy's."""

_PAUSE_SECONDS = 0.1

_NUMBERS: LiteralString = "SELECT batch, delivered FROM {source}"
_OWN_ROWS: LiteralString = (
    "INSERT INTO {message} (service, topic, key, value)"
    " SELECT 'copy', %(topic)s, convert_to(n::text, 'UTF8'), NULL FROM generate_series(1, %(rows)s) n"
    " RETURNING {transaction_id} || '/' || id"
)
_WAITING: LiteralString = "SELECT {transaction_id} || '/' || id FROM {message} WHERE topic = %(topic)s"


class GivenUpError(Exception):
    """Something else was in the way."""


class CopyCruelty(Lasting):
    """The fault. Original and copy name a batch of one number, and only the copy's is delivered.

    A relay of the original must halt then, and delete nothing of its own batch. After the copy's relay has ended, the
    operator resumes the source. What only the copy has is delivered, or waits there.

    `processes`: the relays, which are down while the copy is made; `source`: its operator waits until the copy has
    ended.
    """

    def __init__(self, world: World, processes: Processes, source: SourceCruelty) -> None:
        super().__init__()
        self._started: list[Service] = []
        self._owed: set[str] = set()
        self._kept: set[str] = set()
        self._world = world
        self._processes = processes
        self._source = source
        self._table = MessageTable(world.site.tables)
        self._programs = postgres_binaries(None, world.stack.data_dir)
        world.site.create_topics(TOPIC)

    def serve_a_copy(self) -> None:
        """Restore a dump beside the original, and serve both under one name."""
        with self._source.without_operator() as is_well:
            if not is_well or self._healing.is_set():
                return
            try:
                self._meet()
            except psycopg.Error as error:
                if not is_away(error):
                    raise
                self._give_up(type(error).__name__)
            except GivenUpError as error:
                self._give_up(str(error))
            finally:
                self._end_relays()

    def _give_up(self, why: str) -> None:
        self.outcomes[f"copies under one source name: given up, {why}"] += 1
        for relay in self._started:
            self._processes.ended_badly.append(f"a relay of a copy that was given up, {why}:\n{relay.output()[-3000:]}")

    def _meet(self) -> None:
        site = self._world.site
        with self._processes.down("relay"):
            self._wait(lambda: _owner(site) is None, "the owner's session lasted")
            before = self._numbers(site.postgres_url)
            url = self._restore()
            own = self._insert(url)
            named, _ = self._name_a_batch(before)
            self._source.ask_for_operator()
            copy = self._relay(as_relay(site, url), "")
            self._wait(lambda: self._numbers(url)[1] >= named, "the copy delivered no batch")
            self.faults["copy of the database under the same source name"] += 1
            if met := self._numbers(url) == (named, named):
                self._source.expect(Doubled(named, named - 1, self._processes.halts()))
                self.outcomes["batches named by both original and copy"] += 1
        if met:
            with suppress(GivenUpError):  # a relay of the original may still halt until the round ends
                self._wait(self._source.has_halted, "")
                self._kept |= self._insert(url)
                self._wait(lambda: bool(halts_of(copy)), "")
                self.outcomes["copies whose own relay halted, too"] += 1
        copy.kill()
        waiting = {message_id for (message_id,) in self._rows(url, _WAITING)}
        self._owed |= (own | self._kept) - waiting

    def _insert(self, url: str) -> set[str]:
        return {message_id for (message_id,) in self._rows(url, _OWN_ROWS)}

    def _restore(self) -> str:
        """Restore a dump into another database of the server; return its URL."""
        here = self._world.site.postgres_url
        there = urlsplit(here)._replace(path=f"/{_DATABASE}").geturl()
        self._make_database()
        dump = str(Path(self._world.site.log_folder) / "dump")
        self._run("pg_dump", "--format=custom", "--lock-wait-timeout=5s", f"--file={dump}", here)
        self._run("pg_restore", "--no-publications", "--exit-on-error", f"--dbname={there}", dump)
        return there

    def _run(self, program: str, *arguments: str) -> None:
        result = subprocess.run([self._programs / program, *arguments], capture_output=True, text=True, check=False)
        if result.returncode:
            raise GivenUpError(f"{program}: {result.stderr.strip().splitlines()[0]}")

    def _make_database(self) -> None:
        """Make the database, in the place of the one that the last copy left behind."""
        self._world.site.sql(f"DROP DATABASE IF EXISTS {_DATABASE} WITH (FORCE)")
        self._world.site.sql(f"CREATE DATABASE {_DATABASE}")

    def _name_a_batch(self, before: tuple[int, int]) -> tuple[int, int]:
        """Let a relay of the original die between the statement that names a batch and its delivery."""
        moves = 1 if before[0] == before[1] else 2  # to take over is one, if a batch is open
        relay = self._relay(as_relay(self._world.site, self._world.site.postgres_url), f"relay.table_moved:{moves}")
        self._wait(lambda: not relay.running, "the original named no batch")
        batch, delivered = self._numbers(self._world.site.postgres_url)
        if batch != delivered + 1:
            raise GivenUpError("the original named no batch")
        return batch, delivered

    def _relay(self, url: str, failpoint: str) -> Service:
        sources = {SOURCE: {"dsn": url, "table_prefix": self._world.site.name}}
        extra = {**self._world.settings(), "OUTBOX_TABLES": json.dumps(sources)}
        relay = self._world.site.relay(failpoint=failpoint, extra=extra)
        self._started.append(relay)
        return relay

    def _end_relays(self) -> None:
        while self._started:
            relay = self._started.pop()
            relay.kill()
            self._world.site.services.remove(relay)

    def _numbers(self, url: str) -> tuple[int, int]:
        ((batch, delivered),) = self._rows(url, _NUMBERS) or [(0, 0)]
        return batch, delivered

    def _rows(self, url: str, statement: LiteralString) -> list[Any]:
        with psycopg.connect(url) as connection:
            parameters = {"topic": self._world.site.topic(TOPIC), "rows": ROWS}
            return connection.execute(self._table.compose(statement), parameters).fetchall()

    @staticmethod
    def _wait(condition: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise GivenUpError(why)
            time.sleep(_PAUSE_SECONDS)

    def take_found(self) -> list[str]:
        """What copies deleted unread, or delivered after both had to halt, now that all is settled."""
        owed, kept, self._owed, self._kept = self._owed, self._kept, set(), set()
        if not owed | kept:
            return []
        visible = read_committed(self._world.site.kafka(), [self._world.site.topic(TOPIC)])
        counts = Counter(record.message_id for record in visible)
        found = [f"{id_}, a row of the copy, is {counts[id_]} times visible" for id_ in owed if counts[id_] != 1]
        return found + [f"{id_}, a row of the copy, came after the halt" for id_ in kept if counts[id_]]


def _owner(site: Site) -> object:
    with site.connect() as connection:
        source = identifier(site.tables.schema, site.tables.source)
        return connection.execute(OWNER, {"source": source}).fetchone()
