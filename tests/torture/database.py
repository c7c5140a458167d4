"""What is done to Postgres: killed, stopped, failed over, gone for long, locked up and used up by strangers."""

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import psycopg

from outbox import HalfOutbox, Message, OutboxError
from tests.support.bulk import send_halves
from tests.torture.evidence import TOPICS
from tests.torture.lasting import Lasting
from tests.torture.strangers import connections_used_up, is_away, lock_table_full, locks, table_locks
from tests.torture.world import World

ORPHANS = 150
"""Halves without a local transaction that wait while the database is away; so few that a crash explains them (R10)."""

MINUTE = 60.0
_A_WHILE = (2.0, 10.0)
_LONGEST_SHARE = 0.25
_HELD_SECONDS = 0.2
"""So long all applications need to come to their COMMIT; Postgres writes its log every 200 ms without any."""

_LOST_SECONDS = 3.0
"""So long before its end an asynchronous primary commits what its standby does not get."""


class DatabaseCruelty(Lasting):
    """Faults of the database, one at a time for each kind of server, for `longest` seconds, or until `heal()`."""

    def __init__(self, world: World, chance: random.Random, longest: float) -> None:
        super().__init__()
        self._longest = longest
        self._world = world
        self._chance = chance
        kafka = {**world.site.kafka(), "log_level": "0"}  # that brokers die is no news here
        self._outbox = HalfOutbox("orders", kafka, channel=world.site.name, tables=world.site.tables)

    def close(self) -> None:
        self.heal()
        self._outbox.close()

    def kill(self) -> None:
        """Kill it while COMMITs are under way; it comes back at once, and may give out xids once more."""
        self._hold_commits()
        self._world.stack.postgres.kill()
        self.faults["Postgres killed"] += 1
        self._world.stack.postgres.start()

    def _hold_commits(self) -> None:
        """Let no COMMIT arrive: after a moment nothing is flushed any more, and what is under way may be lost."""
        self._world.loop.start(self._world.postgres.hold_commits(5 * _HELD_SECONDS))
        self._healing.wait(_HELD_SECONDS)

    def fail_over(self) -> None:
        """Kill it and promote its standby, to which all clients are led; what it was is the standby from then on."""
        self._hold_commits()
        self._world.stack.fail_over()
        self._world.follow_the_primary()
        self.faults["Postgres failed over to its standby"] += 1
        self._world.stack.rebuild_standby()

    def fail_over_with_a_loss(self) -> None:
        """The same, with a standby that did not get the last commits: only where commits do not wait for it."""
        stack = self._world.stack
        assert stack.standby
        stack.standby.kill()
        self._healing.wait(_LOST_SECONDS)  # commits go on, and nobody else has them
        stack.postgres.kill()
        stack.standby.start()
        self.fail_over()

    def go_away(self) -> None:
        """Let many halves wait for a database that is not there."""
        self._send_orphans()
        self._world.stack.postgres.kill()
        self._hold("Postgres away while halves wait")
        self._world.stack.postgres.start()

    def _send_orphans(self) -> None:
        topic = self._world.site.topic(TOPICS[0])
        messages = (Message(topic, b'{"departure": 0}', f"orphan {number}") for number in range(ORPHANS))
        try:
            send_halves(self._world.site, self._outbox, messages)
        except OutboxError:  # a broker is away, too: some of them wait
            return

    def use_up_connections(self) -> None:
        self._let("connections used up", lambda: connections_used_up(self._world.stack.postgres_url))

    def fill_lock_table(self) -> None:
        self._let("lock table full", lambda: lock_table_full(self._world.stack.postgres_url))

    def lock(self) -> None:
        """One of the callback tables, or of those of table mode, is locked."""
        ways = {**locks(self._world.site.tables), **table_locks(self._world.site.tables)}
        name = self._chance.choice(sorted(ways))
        way, table = ways[name]
        self._let(name, lambda: way(self._world.stack.postgres_url, table))

    def _let(self, name: str, hold: Callable[[], AbstractContextManager[None]]) -> None:
        """Let a stranger hold something. If the server ends meanwhile, or others were first, he gives up."""
        try:
            with hold():
                self._hold(name)
        except psycopg.Error as error:
            if not is_away(error):
                raise

    def _hold(self, name: str) -> None:
        long = self._chance.random() < _LONGEST_SHARE
        began = time.monotonic()
        self._healing.wait(self._longest if long else self._chance.uniform(*_A_WHILE))
        self.faults[name] += 1
        if time.monotonic() - began >= MINUTE:
            self.faults[f"{name}, for a minute"] += 1
